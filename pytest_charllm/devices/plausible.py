"""Values that cannot be true become None with their raw value in the reason. Pure; shared by all vendors."""

from __future__ import annotations

import math

from pytest_charllm.records.telemetry import CUMULATIVE

TEMPERATURE_C = (-20.0, 130.0)
MARGIN_C = (-130.0, 150.0)
"""Slowdown threshold minus temperature, both within `TEMPERATURE_C`. Zero and below are legal under load."""
POWER_HEADROOM = 1.5
"""Peaks of 1.2 times the limit are real on a board that regulates over tens of milliseconds; 1.5 times is not."""
CLOCK_HEADROOM = 1.2


class Plausible:
    """The filter of one device. `power_limit_w` is the largest limit the board can be set to; None: not checked.

    A counter that steps back loses just the sample of the step and counts on from there: after a glitch the series
    is whole again, after a reset it visibly starts lower.
    """

    def __init__(
        self,
        power_limit_w: float | None = None,
        sm_clock_max_mhz: float | None = None,
        mem_clock_max_mhz: float | None = None,
    ) -> None:
        self._bounds = {
            "power_instant_w": _power(power_limit_w),
            "power_average_w": _power(power_limit_w),
            "margin_c": MARGIN_C,
            "sm_clock_mhz": _clock(sm_clock_max_mhz),
            "mem_clock_mhz": _clock(mem_clock_max_mhz),
        }
        """Lowest and highest value of each quantity. The lowest of a counter is its last."""

    def filter(self, values: dict[str, float | None], missing: dict[str, str]) -> None:
        """Replace, in place, each implausible value by None and say so in `missing`."""
        for quantity, value in values.items():
            if value is None:
                continue
            lowest, highest = self._bounds.get(quantity) or self._bounds.setdefault(quantity, _bounds(quantity))
            if quantity in CUMULATIVE:
                self._bounds[quantity] = value, highest
            if not lowest <= value <= highest:
                values[quantity] = None
                missing[quantity] = f"implausible: {value:.12g}"


def _power(limit_w: float | None) -> tuple[float, float]:
    """More than nothing, and less than the headroom."""
    highest = math.inf if limit_w is None else math.nextafter(POWER_HEADROOM * limit_w, 0)
    return math.nextafter(0, 1), highest


def _clock(maximum_mhz: float | None) -> tuple[float, float]:
    return 0, math.inf if maximum_mhz is None else CLOCK_HEADROOM * maximum_mhz


def _bounds(quantity: str) -> tuple[float, float]:
    if quantity.endswith("_temp_c"):
        return TEMPERATURE_C
    return 0, 1 if quantity.endswith("_share") else math.inf
