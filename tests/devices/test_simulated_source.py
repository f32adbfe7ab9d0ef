from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.devices.simulated.board import PROFILES, REFRESH_S, SimulatedGpu
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.errors import BadInput
from pytest_charllm.records.telemetry import QUANTITIES, SampleLine

H200 = PROFILES["h200"]
S = 1_000_000_000


class Clock:
    """Nanoseconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_ns = 5 * S

    def __call__(self) -> int:
        return self.now_ns


def run(simulation: Simulation, clock: Clock, seconds: float, period_s: float = 0.01) -> list[SampleLine]:
    source = simulation.source()
    (device,) = source.devices()
    samples = []
    for _ in range(round(seconds / period_s)):
        clock.now_ns += round(period_s * S)
        samples.append(source.read(device.uuid, QUANTITIES))
    return samples


@given(st.floats(0, 30), st.floats(0, 30), st.floats(0, 30))
def test_truth_adds_up(a, b, c):
    """An oracle that is not additive over windows cannot judge an estimator."""
    begin, middle, end = sorted((a, b, c))
    gpu = SimulatedGpu(replace(H200, load_until_s=20.0))
    parts = gpu.energy_j(middle) - gpu.energy_j(begin) + gpu.energy_j(end) - gpu.energy_j(middle)
    assert parts == pytest.approx(gpu.energy_j(end) - gpu.energy_j(begin), abs=1e-6)
    assert gpu.power_cap_s(begin) <= gpu.power_cap_s(end)


def test_truth_is_the_integral_of_power():
    """The closed form against a fine sum over the three levels of the square wave, through start and end of load."""
    gpu = SimulatedGpu(replace(H200, load_until_s=3.3))
    fine_s = 1e-4
    middles = [(i + 0.5) * fine_s for i in range(50_000)]
    levels = [
        700.0 if gpu.is_computing(t) else H200.communication_w if gpu.is_loaded(t) else H200.idle_w for t in middles
    ]
    assert gpu.energy_j(5.0) == pytest.approx(sum(levels) * fine_s, rel=1e-4)
    assert gpu.power_cap_s(5.0) == pytest.approx(sum(map(gpu.is_computing, middles)) * fine_s, rel=1e-3)


def test_the_counter_moves_in_refreshes_only():
    """The real counter advances every 100 ms: read faster it repeats itself, and that is what estimators must bear."""
    clock = Clock()
    samples = run(Simulation("h200", clock=clock), clock, 5.0)
    energy = [sample.values["energy_j"] for sample in samples]
    changed_ns = [
        later.mono_ns for earlier, later in pairwise(samples)
        if later.values["energy_j"] != earlier.values["energy_j"]
    ]  # fmt: skip
    assert energy == sorted(energy)
    gaps_s = [(later - earlier) / S for earlier, later in pairwise(changed_ns)]
    assert all(gap == pytest.approx(REFRESH_S, abs=0.011) for gap in gaps_s)
    assert len(gaps_s) > 40


def test_the_counter_follows_the_truth():
    """Between two refreshes the counter difference is the truth of just that time: nothing drifts."""
    clock = Clock()
    simulation = Simulation("h200", clock=clock)
    first, *_, last = run(simulation, clock, 30.0)
    counted = last.values["energy_j"] - first.values["energy_j"]
    truth = simulation.truth(first.mono_ns, last.mono_ns)
    assert counted == pytest.approx(truth.energy_j, abs=2 * REFRESH_S * 700)
    assert truth.mean_power_w == pytest.approx(truth.energy_j / (30.0 - 0.01))


def test_sensors_are_as_flawed_as_real_ones():
    """Instant power sees 25 ms of each refresh only, average power lags; both carry a gain the counter does not."""
    clock = Clock()
    samples = run(Simulation("h200", ("GPU-x",), seed=3, clock=clock), clock, 8.0)
    instant = {sample.values["power_instant_w"] for sample in samples[400:]}
    average = {sample.values["power_average_w"] for sample in samples[400:]}
    assert max(instant) - min(instant) > 100
    assert max(average) - min(average) < 40
    gain = max(instant) / 700.0
    assert gain != pytest.approx(1.0, abs=1e-6)
    assert gain == pytest.approx(1.0, abs=0.1)


def test_throttling_counts_the_capped_time():
    """The ns counter and the event bit tell of the same thing: demand above the limit, while computing."""
    clock = Clock()
    simulation = Simulation("h200", clock=clock)
    samples = run(simulation, clock, 10.0, 0.001)
    bits = [sample for sample in samples if int(sample.values["event_reasons"]) & 0x4]
    truth = simulation.truth(5 * S, clock.now_ns)
    assert samples[-1].values["throttle_power_cap_ns"] == pytest.approx(truth.power_cap_s * 1e9)
    assert len(bits) * 0.001 == pytest.approx(truth.power_cap_s, rel=0.02)
    assert all(sample.values["sm_clock_mhz"] < H200.sm_max_mhz for sample in bits)


def test_an_uncapped_board_does_not_throttle():
    """Demand below the limit: no cap bit, full clock, no counted time."""
    clock = Clock()
    samples = run(Simulation(replace(H200, demand_w=600.0), clock=clock), clock, 5.0)
    assert samples[-1].values["throttle_power_cap_ns"] == 0.0
    assert {sample.values["sm_clock_mhz"] for sample in samples} == {H200.sm_idle_mhz, H200.sm_max_mhz}


def test_temperature_settles_and_margin_mirrors_it():
    """A first-order rise: monotone under load, near its end value after five time constants."""
    clock = Clock()
    simulation = Simulation("h200", clock=clock)
    samples = run(simulation, clock, 1 + 6 * H200.tau_s, 0.5)
    core = [sample.values["core_temp_c"] for sample in samples]
    assert core == sorted(core)
    rise_c = H200.core_c_per_w * (simulation.gpu.load_w - H200.idle_w)
    assert core[-1] - core[0] == pytest.approx(rise_c, abs=1.5)
    assert all(s.values["margin_c"] + s.values["core_temp_c"] == pytest.approx(89, abs=1) for s in samples)


def test_the_seed_decides_everything():
    """A failing test must fail again: same seed, same readings; another seed, another card."""

    def values(seed: int) -> list[dict]:
        clock = Clock()
        return [sample.values for sample in run(Simulation("h200", seed=seed, clock=clock), clock, 3.0, 0.1)]

    assert values(1) == values(1)
    assert values(1) != values(2)


def test_reading_does_not_change_the_board():
    """State that reads advance would make two readers of one device see different worlds."""
    often, seldom = Clock(), Clock()
    last = run(Simulation("h200", clock=often), often, 4.0, 0.001)[-1]
    assert last.values == run(Simulation("h200", clock=seldom), seldom, 4.0, 4.0)[-1].values


def test_every_quantity_is_finite_and_known():
    """What the simulator invents must be what the records know."""
    clock = Clock()
    (sample,) = run(Simulation("h200", clock=clock), clock, 1.0, 1.0)
    assert set(sample.values) <= set(QUANTITIES)
    assert all(math.isfinite(value) for value in sample.values.values())


@pytest.mark.parametrize("profile", ["h900", "h200+flood", ""])
def test_an_unknown_profile_is_refused_with_the_known_ones(profile):
    """A typo must not silently simulate something else."""
    with pytest.raises(BadInput, match=r"use (h200|hang)"):
        Simulation(profile)
