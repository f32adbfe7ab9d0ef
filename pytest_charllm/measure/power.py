"""Power peaks, clocks and throttled time of one device's window."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from pytest_charllm.measure.series import Series, mean
from pytest_charllm.measure.windows import DeviceWindow, percentile, seen
from pytest_charllm.records import Value

PEAK_PERCENT = 99.5
"""A maximum would grow with the number of samples, so it is told but not judged."""


def peak_power(window: DeviceWindow) -> Value:
    """99.5th percentile of instant power over the window's samples, in watts."""
    return window.sampled("power_instant_w", "W", lambda readings: percentile(readings, window, PEAK_PERCENT))


def highest_power(window: DeviceWindow) -> Value:
    """The largest sample of instant power in the window, in watts. Grows with the number of samples."""
    return window.sampled("power_instant_w", "W", lambda readings: max(seen(readings, window)))


def burstiness(window: DeviceWindow) -> Value:
    """``(p99.5 - p50) / p50`` of power, from the driver's ring where it covers the window, else from the samples.

    `source` says which of the two, and how far apart its readings are: denser ones see shorter bursts.
    """
    ring = window.whole_ring()
    if ring:
        return _burstiness(Value(value=0.0, unit="share", source="driver's ring"), ring.values, ring)
    seen_w = window.sampled("power_instant_w", "share", lambda readings: 0.0)
    if seen_w.value is None:
        return seen_w
    readings = window.series("power_instant_w")
    return _burstiness(replace(seen_w, source="samples"), seen(readings, window), readings)


def sm_clock(window: DeviceWindow) -> Value:
    """Time-weighted mean of the SM clock, in MHz."""
    return window.sampled("sm_clock_mhz", "MHz", lambda readings: mean(readings, window.begin_ns, window.end_ns))


def sm_clock_p5(window: DeviceWindow) -> Value:
    """5th percentile of the SM clock's readings in the window, in MHz."""
    return window.sampled("sm_clock_mhz", "MHz", lambda readings: percentile(readings, window, 5.0))


def throttle_share(window: DeviceWindow, *quantities: str) -> Value:
    """Share of the window under the given causes, from their cumulative nanosecond counters, summed.

    `source` says so where a counter was put together from sampled reason bits, which miss what is short.
    """
    shares = [_share(window, quantity) for quantity in quantities]
    for share in shares:
        if share.value is None:
            return share
    return Value(
        value=sum(share.value for share in shares if share.value is not None),
        unit="share",
        coverage=min(share.coverage for share in shares if share.coverage is not None),
        gap_s=max(share.gap_s for share in shares if share.gap_s is not None),
        source=" and ".join(sorted({share.source for share in shares if share.source})) or None,
    )


def _share(window: DeviceWindow, quantity: str) -> Value:
    throttled_ns, readings = window.advance(quantity), window.series(quantity)
    if isinstance(throttled_ns, str):
        return _no_share(throttled_ns)
    return Value(
        value=throttled_ns / window.duration_ns,
        unit="share",
        coverage=window.coverage(quantity, readings),
        gap_s=window.gap_s(readings),
        source=window.line.semantics.get(quantity),
    )


def _burstiness(evidence: Value, powers_w: Sequence[float], readings: Series) -> Value:
    median_w = statistics.median(powers_w)
    if median_w <= 0:
        return replace(evidence, value=None, source=None, reason=f"median power is {median_w:g} W")
    top_w = statistics.quantiles(powers_w, n=200, method="inclusive")[-1]
    spacing_ns = statistics.median(later - earlier for earlier, later in pairwise(readings.times_ns))
    source = f"{evidence.source}, one every {spacing_ns / 1e6:.0f} ms"
    return replace(evidence, value=(top_w - median_w) / median_w, source=source)


def _no_share(reason: str) -> Value:
    return Value(value=None, unit="share", reason=reason)
