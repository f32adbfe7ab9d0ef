"""Numbers and clock times as logs print them: decimal commas, thousands separators, exponents, minutes and hours."""

from __future__ import annotations

import re
from typing import NamedTuple

NUMBER = r"[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d{1,3})?|(?i:nan|inf(?:inity)?))"
"""A pattern without groups, for the readers' own. May take a comma or a full stop after the number with it."""

COUNT = r"\d{1,12}"
"""A step or a batch size; more digits than that are rubbish."""


class Number(NamedTuple):
    value: float
    half_unit: float
    """Half a unit of the last digit written: the most that rounding has taken away."""


def number(text: str, *, grouped: bool = False) -> Number | None:
    """The number that `text` writes, or None where it is none.

    Of two kinds of separators the last one is the decimal one, and one that comes twice separates thousands. A single
    comma is a decimal comma, unless the trainer is known to write thousands with it (`grouped`) and three digits
    follow.
    """
    mantissa, _, exponent = text.strip().rstrip(".,").lower().partition("e")
    plain = _without_grouping(mantissa, grouped)
    if plain is None:
        return None
    try:
        value = float(f"{plain}e{exponent}" if exponent else plain)
        half_unit = 0.5 * 10.0 ** (int(exponent or 0) - len(plain.partition(".")[2]))
    except (ValueError, OverflowError):
        return None
    return Number(value, half_unit)


def clock_s(text: str) -> int | None:
    """Seconds of ``mm:ss``, ``h:mm:ss`` or ``1 day, h:mm:ss``."""
    match = re.fullmatch(r"(?:(\d{1,4}) days?, )?(?:(\d{1,5}):)?(\d{1,2}):(\d{2})", text.strip(), re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def _without_grouping(mantissa: str, grouped: bool) -> str | None:
    """The mantissa with a decimal point and no other separator."""
    last = max(mantissa.rfind("."), mantissa.rfind(","))
    if last < 0:
        return mantissa
    decimal = mantissa[last]
    other = "," if decimal == "." else "."
    thousands = mantissa.count(decimal) > 1 or (
        decimal == "," and grouped and other not in mantissa and len(mantissa) - last == 4
    )
    if thousands:
        separator, fraction = decimal, ""
        whole = mantissa
        if other in mantissa:
            return None
    else:
        separator, fraction = other, mantissa[last + 1 :]
        whole = mantissa[:last]
    first, *groups = whole.split(separator)
    if any(len(group) != 3 for group in groups):
        return None
    digits = "".join((first, *groups))
    return f"{digits}.{fraction}" if fraction else digits
