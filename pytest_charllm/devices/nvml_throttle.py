"""Time under a cause from sampled reason bits, where a driver keeps no counter of it. Pure.

It misses whatever begins and ends between two passes, so it is labelled and never compared with a counter.
"""

from __future__ import annotations

SAMPLED = "sampled reason bits, misses what is shorter than a pass"
BITS = {
    "throttle_power_cap_ns": 0x4,
    "throttle_sync_boost_ns": 0x10,
    "throttle_sw_thermal_ns": 0x20,
    "throttle_hw_thermal_ns": 0x40,
    "throttle_hw_brake_ns": 0x80,
}
"""Quantity -> its bit of the event reasons."""


class SampledThrottle:
    """A bit seen in one pass is taken to hold until the next."""

    def __init__(self, quantities: frozenset[str]) -> None:
        self.quantities = quantities
        self._total_ns = dict.fromkeys(quantities, 0)
        self._last: tuple[int, int] | None = None

    def add(self, reasons: int, mono_ns: int) -> dict[str, float]:
        """quantity -> cumulative nanoseconds, once these reasons were read."""
        if self._last is not None:
            then, then_ns = self._last
            for quantity in self.quantities:
                if then & BITS[quantity]:
                    self._total_ns[quantity] += mono_ns - then_ns
        self._last = (reasons, mono_ns)
        return {quantity: float(total_ns) for quantity, total_ns in self._total_ns.items()}
