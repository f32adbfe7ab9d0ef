"""Values that cannot be true become None with their raw value in the reason. Pure; shared by all vendors."""

from __future__ import annotations

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
        self.power_limit_w = power_limit_w
        self.sm_clock_max_mhz, self.mem_clock_max_mhz = sm_clock_max_mhz, mem_clock_max_mhz
        self._last: dict[str, float] = {}

    def filter(self, values: dict[str, float | None], missing: dict[str, str]) -> None:
        """Replace, in place, each implausible value by None and say so in `missing`."""
        for quantity, value in values.items():
            if value is not None and not self._holds(quantity, value):
                values[quantity] = None
                missing[quantity] = f"implausible: {value:.12g}"

    def _holds(self, quantity: str, value: float) -> bool:
        if quantity in CUMULATIVE:
            last = self._last.get(quantity, 0.0)
            self._last[quantity] = value
            return value >= last
        if quantity in ("power_instant_w", "power_average_w"):
            return value > 0 and (self.power_limit_w is None or value < POWER_HEADROOM * self.power_limit_w)
        if quantity == "margin_c":
            return MARGIN_C[0] <= value <= MARGIN_C[1]
        if quantity.endswith("_temp_c"):
            return TEMPERATURE_C[0] <= value <= TEMPERATURE_C[1]
        if quantity.endswith("_share"):
            return 0 <= value <= 1
        maximum = {"sm_clock_mhz": self.sm_clock_max_mhz, "mem_clock_mhz": self.mem_clock_max_mhz}.get(quantity)
        return value >= 0 and (maximum is None or value <= CLOCK_HEADROOM * maximum)
