"""How a metric's value is printed: as few digits as its noise is worth, in a unit that needs no zeros."""

from __future__ import annotations

import math

from pytest_charllm.records import METRICS

GIB = 2**30
MIB = 2**20


def value(metric: str, number: float | None) -> str:
    """Without the unit where the metric's title names it; "" where there is no number."""
    if number is None:
        return ""
    unit = METRICS[metric].unit
    if unit == "J/token":
        return f"{significant(1e3 * number)} mJ" if abs(number) < 0.1 else f"{significant(number)} J"
    if unit == "s":
        return seconds(number)
    if unit == "bytes":
        return size(number)
    if unit == "share":
        return f"{100 * number:.1f} %"
    if unit == "degC":
        return f"{number:.1f}"
    return significant(number)


def seconds(duration_s: float) -> str:
    """``93.1 ms`` below a second, ``12.0 us`` below a millisecond, else ``12.4 s``."""
    if 0 < abs(duration_s) < 1e-3:
        return f"{significant(1e6 * duration_s)} us"
    return f"{significant(1e3 * duration_s)} ms" if abs(duration_s) < 1 else f"{significant(duration_s)} s"


def size(number_bytes: float) -> str:
    """``71.3 GiB``, below one GiB ``512 MiB``."""
    if abs(number_bytes) >= GIB:
        return f"{significant(number_bytes / GIB)} GiB"
    return f"{significant(number_bytes / MIB)} MiB"


def minutes(seconds: float) -> str:
    """Of a plan: whole minutes, or hours from two on."""
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{max(1, round(seconds / 60))} min"


def significant(number: float) -> str:
    """Three significant digits, or all of the whole number, with thousands separated and no exponent."""
    if number == 0:
        return "0"
    # Rounded first: 0.9999 is 1.00, one digit less after the point than its own size says.
    magnitude = math.floor(math.log10(abs(float(f"{number:.3g}"))))
    return f"{number:,.{max(0, 2 - magnitude)}f}"
