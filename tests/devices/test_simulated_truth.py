"""What the estimators make of simulated sensors, against what really happened: the figures the product promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pytest_charllm.devices.simulated.board import INSTANT_S, PROFILES, REFRESH_S
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.measure.energy import counter_energy, integral_energy
from pytest_charllm.measure.power import throttle_share
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records.telemetry import QUANTITIES

S = 1_000_000_000
H200 = PROFILES["h200"]


def sampled(cut, profile, seed: int, length_s: float) -> tuple[Simulation, DeviceWindow]:
    """As the sampler reads: 10 Hz with jitter, slow quantities once a second, energy always at announced edges."""
    now = [7 * S]
    simulation = Simulation(profile, ("GPU-x",), seed=seed, clock=lambda: now[0])
    source = simulation.source()
    (line,) = source.devices()
    rng = random.Random(seed)
    begin_s, samples = 12.0 + rng.random(), []
    end_s = begin_s + length_s
    for tick in range(round((end_s + 2) * 10)):
        at_s = tick / 10 + rng.uniform(-0.02, 0.02)
        now[0] = 7 * S + round(max(0.0, at_s) * S)
        is_close = -0.45 < at_s - begin_s < 0.45 or -0.15 < at_s - end_s < 0.35
        wanted = set(QUANTITIES) - set(line.slow)
        if tick % 10 == 0:
            wanted |= set(line.slow)
        elif is_close:
            wanted.add("energy_j")
        samples.append(source.read(line.uuid, wanted))
    return simulation, cut(line, samples, round((7 + begin_s) * S), round((7 + end_s) * S))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.sampled_from([(10.0, 0.01), (30.0, 0.005)]), st.sampled_from(["h200", "h100"]))
def test_the_counter_gives_the_energy_of_a_window(window_of, seed, length, profile):
    """Within 1 % at 10 s and 0.5 % at 30 s, whatever the phase of the refresh against both edges."""
    length_s, limit = length
    simulation, window = sampled(window_of, profile, seed, length_s)
    truth = simulation.truth(window.begin_ns, window.end_ns)
    assert counter_energy(window).value == pytest.approx(truth.energy_j, rel=limit)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.floats(0.11, 0.9))
def test_the_integral_agrees_where_steps_do_not_march_with_the_sensor(window_of, seed, step_s):
    """Within 3 % of the truth as this sensor's own gain sees it, over 30 s: 300 looks of 25 ms each."""
    near_harmonic = min(abs(step_s * n / REFRESH_S - round(step_s * n / REFRESH_S)) for n in (1, 2, 3)) < 0.05
    assume(not near_harmonic)
    simulation, window = sampled(window_of, replace(H200, step_s=step_s), seed, 30.0)
    truth = simulation.truth(window.begin_ns, window.end_ns)
    gain = random.Random(f"{seed}/GPU-x").gauss(1.0, 0.02)
    assert integral_energy(window).value == pytest.approx(gain * truth.energy_j, rel=0.03)


def test_steps_in_time_with_the_sensor_fool_the_integral_and_not_the_counter(window_of):
    """A step of just the refresh period: the 25 ms that "instant" sees are always the same part of it. The integral is
    off by far more than its 3 %, over seeds in both directions; the counter has seen everything."""
    marching = replace(H200, step_s=REFRESH_S)
    assert INSTANT_S < REFRESH_S / 2
    off, counted = [], []
    for seed in range(12):
        simulation, window = sampled(window_of, marching, seed, 20.0)
        truth = simulation.truth(window.begin_ns, window.end_ns)
        gain = random.Random(f"{seed}/GPU-x").gauss(1.0, 0.02)
        off.append(integral_energy(window).value / (gain * truth.energy_j) - 1)
        counted.append(counter_energy(window).value / truth.energy_j - 1)
    assert max(map(abs, off)) > 0.08
    assert min(off) < 0 < max(off)
    assert max(map(abs, counted)) < 0.005


def test_throttled_time_is_the_counted_one(window_of):
    """From nanosecond counters, so that no event is too short to be seen."""
    simulation, window = sampled(window_of, H200, 3, 10.0)
    truth = simulation.truth(window.begin_ns, window.end_ns)
    assert throttle_share(window, "throttle_power_cap_ns").value == pytest.approx(truth.power_cap_s / 10.0, rel=0.01)


def test_a_window_that_the_sampler_rested_through_has_no_value(window_of):
    """Whatever becomes of the announcement, a thin trace is no evidence: a pass every 0.5 s, all every 10 s."""
    now = [7 * S]
    source = Simulation(H200, ("GPU-x",), clock=lambda: now[0]).source()
    (line,) = source.devices()
    samples = []
    for tick in range(80):
        now[0] += S // 2
        left_out = () if tick % 20 == 0 else line.slow
        samples.append(source.read(line.uuid, set(QUANTITIES).difference(left_out)))
    window = window_of(line, samples, 20 * S, 35 * S)
    assert "not bracketed: gap of 10.00 s" in counter_energy(window).reason
    assert "seen in 20 % of the window" in integral_energy(window).reason
    assert "not bracketed" in throttle_share(window, "throttle_hw_thermal_ns").reason


@pytest.mark.parametrize(
    ("fault", "shown"),
    [("stuck", {"power_instant_w", "energy_j"}), ("reset", {"energy_j"}), ("spike", {"power_instant_w"})],
)
def test_faults_show_in_the_readings(fault, shown):
    """A fault that no reading shows would be a drill that always passes."""

    def readings(profile: str) -> dict[str, list]:
        now = [7 * S]
        source = Simulation(profile, ("GPU-x",), clock=lambda: now[0]).source()
        told: dict[str, list] = {quantity: [] for quantity in ("power_instant_w", "energy_j", "core_temp_c")}
        for _ in range(60):
            now[0] += S // 10
            sample = source.read("GPU-x", QUANTITIES)
            for quantity, values in told.items():
                values.append((sample.values[quantity], sample.missing.get(quantity)))
        return told

    good, bad = readings("h200"), readings(f"h200+{fault}")
    assert {quantity for quantity in good if good[quantity] != bad[quantity]} == shown
    if fault == "spike":
        raw = {reason for _, reason in bad["power_instant_w"] if reason}
        assert raw == {"implausible: 10000"}
