"""Temperatures, margin, clocks and throttle shares, and the coverage they need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.measure import power, thermal
from pytest_charllm.measure.series import Series, coverage, refreshes
from pytest_charllm.measure.windows import DeviceWindow, device_windows


def window_of(make: SimpleNamespace, signals: dict[str, Any], **options: Any) -> DeviceWindow:
    (window,), _ = device_windows(make.launch(), make.trace(signals, **options), is_cpu=False)
    return window


def test_end_temperature_is_of_the_last_second(make: SimpleNamespace) -> None:
    """The mean of a warming window says more about its start than about the load."""
    window = window_of(make, {"core_temp_c": lambda t: 20.0 + 5 * t})
    assert thermal.temperature_end(window, "core_temp_c").value == pytest.approx(20 + 5 * 6.5)


def test_start_temperature_is_of_the_first_second(make: SimpleNamespace) -> None:
    """The band in which temperatures are comparable hangs on what the card was before the load."""
    window = window_of(make, {"core_temp_c": lambda t: 30.0 if t <= 1.0 else 60.0})
    assert thermal.temperature_start(window) == pytest.approx(30.0)


def test_start_temperature_needs_a_reading_before_the_window(make: SimpleNamespace) -> None:
    """A sampler that came late would report the loaded card as its start."""
    assert thermal.temperature_start(window_of(make, {"core_temp_c": lambda t: 60.0}, begin_s=2.5)) is None


def test_margin_may_be_zero_or_negative(make: SimpleNamespace) -> None:
    """A margin of -2 is a real reading and the very one that must not be dropped."""
    window = window_of(make, {"margin_c": lambda t: -2.0 if 4 <= t <= 4.2 else 10.0})
    assert thermal.margin_min(window).value == pytest.approx(-2.0)


def test_peak_power_is_no_maximum(make: SimpleNamespace) -> None:
    """One odd sample of a thousand would otherwise be the peak, more surely the longer the window."""
    window = window_of(make, {"power_instant_w": lambda t: 5000.0 if abs(t - 4.0) < 1e-6 else 600.0}, period_s=0.005)
    assert power.peak_power(window).value == pytest.approx(600.0)


def test_clock_is_weighted_by_time(make: SimpleNamespace) -> None:
    """Samples are not evenly spaced: a burst of them must not count for more."""
    window = window_of(make, {"sm_clock_mhz": lambda t: 1000.0 if t < 4.5 else 2000.0}, period_s=0.01)
    assert power.sm_clock(window).value == pytest.approx(1500.0, abs=5)


def test_throttle_share_sums_its_causes(make: SimpleNamespace) -> None:
    """Thermal slowdown and power brake are one question: did the hardware pull the brake."""
    window = window_of(make, make.healthy() | {"throttle_hw_thermal_ns": lambda t: 5e9 + t * 0.02e9})
    share = power.throttle_share(window, "throttle_hw_thermal_ns", "throttle_hw_brake_ns")
    assert share.value == pytest.approx(0.03)


def test_one_missing_cause_leaves_no_share(make: SimpleNamespace) -> None:
    """Half of the evidence would read as a healthy card."""
    signals = make.healthy() | {"throttle_hw_thermal_ns": lambda t: None}
    share = power.throttle_share(window_of(make, signals), "throttle_hw_thermal_ns", "throttle_hw_brake_ns")
    assert share.value is None


def test_throttle_counter_reset_is_no_share(make: SimpleNamespace) -> None:
    """A counter that was reset would make the share negative: better than perfect."""
    signals = {"throttle_sw_thermal_ns": lambda t: t * 1e8 if t < 5 else 0.0}
    value = power.throttle_share(window_of(make, signals), "throttle_sw_thermal_ns")
    assert value.value is None
    assert "backwards" in (value.reason or "")


def test_quantity_seen_in_half_of_the_window_is_missing(make: SimpleNamespace) -> None:
    """The hottest seconds may be those that the sampler slept through."""
    signals = {"core_temp_c": lambda t: None if 3 < t < 6 else 60.0}
    value = thermal.temperature_end(window_of(make, signals), "core_temp_c")
    assert value.value is None
    assert value.coverage == pytest.approx(0.4, abs=0.03)
    assert "of the window" in (value.reason or "")


def test_reason_is_what_the_device_said(make: SimpleNamespace) -> None:
    """'Missing' alone sends a person searching for what the driver had told all along."""
    window = window_of(make, {}, capabilities={"hbm_temp_c": "NotSupported"})
    assert thermal.temperature_end(window, "hbm_temp_c").reason == "hbm_temp_c: NotSupported"
    assert thermal.temperature_end(window, "core_temp_c").reason == "core_temp_c: never read"


@settings(deadline=None)
@given(
    times=st.lists(st.integers(0, 10_000), min_size=2, max_size=50, unique=True).map(sorted), gap=st.integers(1, 500)
)
def test_coverage_is_a_share_and_grows_with_patience(times: list[int], gap: int) -> None:
    """A coverage above 1 or one that falls when longer gaps are allowed would be no coverage."""
    readings = Series(tuple(times), (1.0,) * len(times))
    covered = coverage(readings, 2000, 8000, gap)
    assert 0 <= covered <= coverage(readings, 2000, 8000, gap + 100) <= 1


def test_a_reading_that_was_put_off_is_in_time_and_one_left_out_is_not() -> None:
    """Jitter and a hold make up to 175 ms of a period of 100; windows of 1.5 s lost 9 % to that, and with it all they
    had measured. Half of the reads left out is half of the coverage."""
    put_off = Series(tuple(sorted({*range(0, 3100, 100)} - {1000, 2000} | {1075, 2075})), (1.0,) * 31)
    assert coverage(put_off, 0, 3000, 100) == 1.0
    left_out = Series(tuple(range(0, 3200, 200)), (1.0,) * 16)
    assert coverage(left_out, 0, 3000, 100) == pytest.approx(0.5, abs=0.02)


def test_refreshes_drop_what_was_only_read_again() -> None:
    """A stale repeat looks like zero power for one period and double for the next."""
    readings = Series((1, 2, 3, 4, 5), (7.0, 7.0, 8.0, 8.0, 9.0))
    assert refreshes(readings) == Series((3, 5), (8.0, 9.0))
