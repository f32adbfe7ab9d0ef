"""Temperatures of one device's window: at its edges, over it, and settled; what a watt heats; margin to slowdown."""

from __future__ import annotations

import statistics

from pytest_charllm.measure.series import mean, slope_per_s, within
from pytest_charllm.measure.windows import DeviceWindow, percentile, seen
from pytest_charllm.records import Value

END_S = 1.0
"""The end temperature is the mean of this last part of the window: one reading is a whole degree coarse."""
START_S = 1.0
"""The start temperature is the mean of the sampler's first part, before any rank has put load on the device."""
SETTLING_S = 120.0
"""The slope is that of the last part of the window, of this length."""
SHORTEST_SETTLING_S = 60.0
"""In a shorter one a step of one degree is a slope of its own."""
STEADY_C_PER_MIN = 0.5
"""Settled: core and HBM rise or fall by less than this."""
STEADY_CLOCK = 0.01
"""Settled: mean SM clocks of both halves of that part are no further apart than this."""
NO_START = "no reading before the window"
SENSORS = ("core_temp_c", "hbm_temp_c")


def temperature_end(window: DeviceWindow, quantity: str) -> Value:
    """Time-weighted mean over the last second of the window, in degC."""
    begin_ns = max(window.begin_ns, window.end_ns - round(END_S * 1e9))
    return window.sampled(quantity, "degC", lambda readings: mean(readings, begin_ns, window.end_ns))


def temperature_p95(window: DeviceWindow, quantity: str) -> Value:
    """95th percentile of the readings in the window, in degC."""
    return window.sampled(quantity, "degC", lambda readings: percentile(readings, window, 95.0))


def temperature_start(window: DeviceWindow) -> float | None:
    """Mean core temperature over the first second of samples, None where there is no reading before the window."""
    return _at_start(window, "core_temp_c")


def slope(window: DeviceWindow, quantity: str) -> Value:
    """Least-squares slope over the last `SETTLING_S` of the window, in degC/min."""
    unit = "degC/min"
    if window.duration_s < SHORTEST_SETTLING_S:
        reason = f"a window of {window.duration_s:.0f} s is too short for a slope, {SHORTEST_SETTLING_S:g} s are needed"
        return Value(value=None, unit=unit, reason=reason)
    begin_ns = _settling_from_ns(window)
    return window.sampled(quantity, unit, lambda readings: 60 * slope_per_s(within(readings, begin_ns, window.end_ns)))


def temperature_steady(window: DeviceWindow) -> Value:
    """Mean core temperature over the last half of the window, in degC; none before the board has settled."""
    reason = unsettled(window)
    if reason is not None:
        return Value(value=None, unit="degC", reason=reason)
    middle_ns = (window.begin_ns + window.end_ns) // 2
    return window.sampled("core_temp_c", "degC", lambda readings: mean(readings, middle_ns, window.end_ns))


def heating(window: DeviceWindow, joules: Value) -> Value:
    """``(end - start temperature) / mean power``, in degC/W: what a watt does to the core within a window this long."""
    unit = "degC/W"
    end, start_c = temperature_end(window, "core_temp_c"), temperature_start(window)
    if end.value is None or joules.value is None or start_c is None:
        return Value(value=None, unit=unit, reason=end.reason or joules.reason or NO_START)
    if joules.value <= 0:
        return Value(value=None, unit=unit, reason="no power was drawn")
    rise_c = end.value - start_c
    return Value(value=rise_c * window.duration_s / joules.value, unit=unit, coverage=end.coverage, gap_s=end.gap_s)


def thermal_resistance(window: DeviceWindow) -> Value:
    """``(steady - start temperature) / (steady - start power)``, in degC/W, once the board has settled.

    Steady are means over the last half of the window, those of the start over the sampler's first second.
    """
    unit = "degC/W"
    steady = temperature_steady(window)
    start_c, start_w = temperature_start(window), _at_start(window, "power_instant_w")
    if steady.value is None or start_c is None or start_w is None:
        return Value(value=None, unit=unit, reason=steady.reason or NO_START)
    middle_ns = (window.begin_ns + window.end_ns) // 2
    power = window.sampled("power_instant_w", unit, lambda readings: mean(readings, middle_ns, window.end_ns))
    if power.value is None:
        return power
    if power.value < 2 * start_w:
        reason = f"the load of {power.value:.0f} W is not twice the {start_w:.0f} W of the start"
        return Value(value=None, unit=unit, reason=reason)
    resistance = (steady.value - start_c) / (power.value - start_w)
    return Value(value=resistance, unit=unit, coverage=steady.coverage, gap_s=steady.gap_s)


def unsettled(window: DeviceWindow) -> str | None:
    """Why temperatures of this window are not steady, or None: by slope, never by the time that has passed."""
    for quantity in SENSORS:
        if window.line.capabilities.get(quantity, "ok") != "ok":
            continue  # a board without that sensor settles by the other
        rate = slope(window, quantity)
        if rate.value is None:
            return rate.reason
        if abs(rate.value) >= STEADY_C_PER_MIN:
            return f"not steady: {quantity.removesuffix('_temp_c')} at {rate.value:+.1f} degC/min"
    clock = window.series("sm_clock_mhz")
    begin_ns, end_ns = _settling_from_ns(window), window.end_ns
    if not clock or window.not_bracketed("sm_clock_mhz", clock) is not None:
        return None
    middle_ns = (begin_ns + end_ns) // 2
    first, second = mean(clock, begin_ns, middle_ns), mean(clock, middle_ns, end_ns)
    if first and abs(second / first - 1) >= STEADY_CLOCK:
        return f"not steady: SM clock {100 * (second / first - 1):+.1f} % from one half to the other"
    return None


def margin_min(window: DeviceWindow) -> Value:
    """Fewest degrees left to the nearest slowdown. Zero and below are real readings."""
    return window.sampled("margin_c", "degC", lambda readings: min(seen(readings, window)))


def _at_start(window: DeviceWindow, quantity: str) -> float | None:
    """Mean over the sampler's first second, None where there is no reading before the window."""
    readings = window.series(quantity)
    if not readings or readings.times_ns[0] >= window.begin_ns:
        return None
    begin_ns = readings.times_ns[0]
    return statistics.fmean(within(readings, begin_ns, min(begin_ns + round(START_S * 1e9), window.begin_ns)).values)


def _settling_from_ns(window: DeviceWindow) -> int:
    return max(window.begin_ns, window.end_ns - round(SETTLING_S * 1e9))
