"""One refresh of a tqdm progress bar, in the units of the bar."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, Number, clock_s, number

_AFTER_PERCENT = re.compile(
    rf"[^|]{{0,500}}\|\s*(?P<done>{COUNT})/(?P<total>{COUNT})\s"
    rf"\[(?P<elapsed>[\d: ,day]{{4,20}})<[^,\]]{{1,30}}(?:,\s*(?P<rate>{NUMBER}|\?)(?P<unit>it/s|s/it))?(?P<rest>.*)",
    re.ASCII,
)


class Bar(NamedTuple):
    label: str
    done: int
    total: int
    elapsed_s: int | None
    """Cut to whole seconds."""
    rate: Number | None
    """Seconds of an iteration; half a unit is that of what was printed, in seconds."""
    rest: str
    """What follows the rate: the postfix."""


def bar_in(text: str) -> Bar | None:
    """The bar painted on this line, None where there is none or where it does not count iterations."""
    before, _, after = text.partition("%|")
    match = _AFTER_PERCENT.match(after)
    if match is None:
        return None
    done, total = int(match["done"]), int(match["total"])
    if total == 0 or done > total:
        return None
    label = before.rstrip("0123456789 ").removesuffix(":").strip()
    elapsed_s, rate = clock_s(match["elapsed"]), seconds_of(match["rate"] or "?", match["unit"])
    return Bar(label, done, total, elapsed_s, rate, match["rest"])


def seconds_of(rate: str, unit: str) -> Number | None:
    """Seconds of an iteration, of a rate in it/s or s/it."""
    told = number(rate)
    if told is None or not 1e-9 < told.value < 1e9:
        return None
    return told if unit == "s/it" else Number(1 / told.value, told.half_unit / told.value**2)
