"""Names of a collective's metrics: two numbers a message size, of which one is judged."""

from __future__ import annotations

from pytest_charllm.scenario.collective import SIZES, label

LATENCY_BOUND = 64 << 10
"""Bytes up to which starting a call takes longer than moving its message: judged by latency, above by bandwidth. Both
say the same time; judged by both, one change would count as two."""


def latency(size: int) -> str:
    """Seconds of one call of that many bytes."""
    return f"latency_{label(size)}"


def bus_bandwidth(size: int) -> str:
    """GB/s (1e9 bytes) on the busiest link, by `scenario.collective.bus_factor`."""
    return f"bus_bandwidth_{label(size)}"


def judged(size: int) -> str:
    """The one of both by which calls of that size are judged."""
    return latency(size) if size <= LATENCY_BOUND else bus_bandwidth(size)


CURVE_METRICS = tuple(metric for size in SIZES for metric in (latency(size), bus_bandwidth(size)))
