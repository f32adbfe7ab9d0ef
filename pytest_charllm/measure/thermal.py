"""Temperatures, margin, clocks, peak power and throttle shares of one device's window."""

from __future__ import annotations

import statistics

from pytest_charllm.measure.series import Series, at, inside, integral, went_backwards
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Value

END_S = 1.0
"""The end temperature is the mean of this last part of the window: one reading is a whole degree coarse."""
START_S = 1.0
"""The start temperature is the mean of the sampler's first part, before any rank has put load on the device."""
PEAK_QUANTILES = 200
"""The peak is the 99.5th percentile: a maximum would grow with the number of samples."""


def temperature_end(window: DeviceWindow, quantity: str) -> Value:
    """Time-weighted mean over the last second of the window, in degC."""
    begin_ns = max(window.begin_ns, window.end_ns - round(END_S * 1e9))
    span_s = (window.end_ns - begin_ns) / 1e9
    return window.sampled(quantity, "degC", lambda readings: integral(readings, begin_ns, window.end_ns) / span_s)


def temperature_start(window: DeviceWindow) -> float | None:
    """Mean core temperature over the first second of samples, None where there is no reading before the window."""
    readings = window.series("core_temp_c")
    if not readings or readings.times_ns[0] >= window.begin_ns:
        return None
    begin_ns = readings.times_ns[0]
    return statistics.fmean(inside(readings, begin_ns, min(begin_ns + round(START_S * 1e9), window.begin_ns)))


def margin_min(window: DeviceWindow) -> Value:
    """Fewest degrees left to the nearest slowdown. Zero and below are real readings."""
    return window.sampled("margin_c", "degC", lambda readings: min(_values(readings, window)))


def peak_power(window: DeviceWindow) -> Value:
    """99.5th percentile of instant power over the window's samples, in watts."""

    def peak(readings: Series) -> float:
        return statistics.quantiles(_values(readings, window), n=PEAK_QUANTILES, method="inclusive")[-1]

    return window.sampled("power_instant_w", "W", peak)


def sm_clock(window: DeviceWindow) -> Value:
    """Time-weighted mean of the SM clock, in MHz."""
    return window.sampled(
        "sm_clock_mhz", "MHz", lambda readings: integral(readings, window.begin_ns, window.end_ns) / window.duration_s
    )


def throttle_share(window: DeviceWindow, *quantities: str) -> Value:
    """Share of the window under the given causes, from their cumulative nanosecond counters, summed.

    Sampled reason bits are no substitute: they miss everything shorter than the sampling period.
    """
    total_ns = 0.0
    covered = 1.0
    for quantity in quantities:
        readings = window.series(quantity)
        if not readings:
            return _no_share(window.absent(quantity))
        if (reason := window.not_bracketed(quantity, readings)) is not None:
            return _no_share(f"{quantity} {reason}")
        if went_backwards(readings):
            return _no_share(f"{quantity} went backwards: the counter was reset")
        total_ns += at(readings, window.end_ns) - at(readings, window.begin_ns)
        covered = min(covered, window.coverage(quantity, readings))
    return Value(value=total_ns / (window.end_ns - window.begin_ns), unit="share", coverage=covered)


def _no_share(reason: str) -> Value:
    return Value(value=None, unit="share", reason=reason)


def _values(readings: Series, window: DeviceWindow) -> tuple[float, ...]:
    """Values inside the window plus those interpolated at its edges, so that even a short one has two."""
    edges = (at(readings, window.begin_ns), at(readings, window.end_ns))
    return (*inside(readings, window.begin_ns, window.end_ns), *edges)
