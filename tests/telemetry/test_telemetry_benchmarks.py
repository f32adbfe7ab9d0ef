"""The scripts behind the H200 figures of telemetry: their estimators on what is known, before they meet a GPU."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_charllm.measure.energy import counter_energy, integral_energy
from pytest_charllm.measure.series import Series
from pytest_charllm.measure.windows import DeviceWindow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import lag
    import outside_check
    import sampler_cost
    import sensor_lag

    return SimpleNamespace(lag=lag, outside=outside_check, cost=sampler_cost, wave=sensor_lag)


def square_wave(scripts: SimpleNamespace):
    times_s = np.cumsum([5.0, *(half_s for each_s in scripts.wave.halves(60.0) for half_s in (each_s, each_s))])
    edges = [scripts.lag.Edge(round(1e9 * at_s), number % 2 == 0) for number, at_s in enumerate(times_s)]
    return edges, scripts.lag.Load(edges)


def read(load, value_at, seed: int = 0) -> Series:
    """Every 40 ms with jitter: what a sensor holds that takes a new value every 100 ms."""
    chance = random.Random(seed)
    times_s = np.array([0.04 * n + chance.uniform(-0.01, 0.01) for n in range(round((load.end_s + 8) / 0.04))]) - 3
    held_s = np.floor(times_s / 0.1) * 0.1
    noise = np.random.default_rng(seed)
    per_refresh = {held: noise.normal() for held in sorted(set(held_s.tolist()))}
    values = value_at(held_s) + [0.5 * per_refresh[held] for held in held_s.tolist()]
    return Series(tuple(load.begin_ns + round(1e9 * at_s) for at_s in times_s), tuple(values.tolist()))


@pytest.mark.parametrize("window_s", [0.025, 1.0])
def test_lag_and_refresh_of_an_averaging_sensor(scripts: SimpleNamespace, window_s: float) -> None:
    """A 1 s average lags by half a second more than its refresh alone makes it; a momentary reading by next to none."""
    _, load = square_wave(scripts)
    told = scripts.lag.estimate(
        read(load, lambda at_s: 120 + 560 * (load.total(at_s) - load.total(at_s - window_s)) / window_s),
        load, is_counter=False, latest_s=4.0,
    )  # fmt: skip
    assert told["lag_s"] == pytest.approx(window_s / 2 + 0.05, abs=0.025)
    assert told["refresh_s"] == pytest.approx(0.1, abs=0.001)
    assert told["explained"] > 0.7


def test_lag_of_a_counter(scripts: SimpleNamespace) -> None:
    """Its value, not its slope, is what the load's time explains; it is seen late by half a sampling period."""
    _, load = square_wave(scripts)
    told = scripts.lag.estimate(
        read(load, lambda at_s: 120 * at_s + 560 * load.total(at_s)), load, is_counter=True, latest_s=4.0
    )
    assert told["lag_s"] == pytest.approx(0.02, abs=0.01)
    assert told["refresh_s"] == pytest.approx(0.1, abs=0.001)


def test_what_ignores_the_load_has_no_lag(scripts: SimpleNamespace) -> None:
    """The best of all shifts is no lag where none of them explains anything."""
    _, load = square_wave(scripts)
    told = scripts.lag.estimate(read(load, lambda at_s: 50 + 0 * at_s), load, is_counter=False, latest_s=4.0)
    assert told["lag_s"] is None
    assert told["lag_reason"] == "does not follow the load"
    flat = Series((load.begin_ns, load.begin_ns + 10**9), (1.0, 1.0))
    assert scripts.lag.estimate(flat, load, False, 4.0)["reason"] == "changed 0 times"


def test_a_few_changes_have_no_period(scripts: SimpleNamespace) -> None:
    """Of thousands of periods one suits twenty moments of chance well."""
    for seed in range(10):
        at_s = np.sort(np.random.default_rng(seed).uniform(0, 120, 22))
        assert scripts.lag.refresh(at_s, 0.04)["refresh_s"] is None


def blocks_and_steps(cost, change: float, seed: int):
    """80 s of steps that swing with a period of a second, drift by 3 %, and are slower while the sampler is on."""
    chance = random.Random(seed)
    patterns = [chance.choice([(True, False, False, True), (False, True, True, False)]) for _ in range(20)]
    states = [on for pattern in patterns for on in pattern]
    blocks = [cost.Block(round(1e9 * n), round(1e9 * (n + 1)), on, 0.0) for n, on in enumerate(states)]
    step_s: list[float] = []
    now_s, noise = 0.0, 0.0
    while now_s < 80:
        noise = 0.3 * noise + chance.gauss(0, 0.01)
        swing = 0.02 * np.sin(2 * np.pi * now_s / 1.03)
        on = states[min(int(now_s), 79)]
        step_s.append(0.038 * (1 + noise + swing + 0.03 * now_s / 80 + (change if on else 0.0)))
        now_s += step_s[-1]
    return blocks, step_s


@pytest.mark.parametrize("change", [0.0, 0.01])
def test_difference_of_toggled_steps(scripts: SimpleNamespace, change: float) -> None:
    """Neither a drift nor the swing of a board at its power cap may pass for the sampler's cost, nor hide it."""
    cost = scripts.cost
    blocks, step_s = blocks_and_steps(cost, change, seed=3)
    found = cost.differences(blocks, cost.by_block(0, round(1e9 * sum(step_s)), step_s, blocks))
    low, high = cost.interval(found)
    assert len(found) == 20
    assert sum(found) / len(found) == pytest.approx(change, abs=0.002)
    assert low <= sum(found) / len(found) <= high
    assert high - low < 0.005


def test_a_step_over_an_edge_counts_as_on(scripts: SimpleNamespace) -> None:
    """The dearest pass comes first when the sampler goes on, so that step must not be lost or counted as off."""
    cost = scripts.cost
    blocks = [cost.Block(n * 10**9, (n + 1) * 10**9, on, 0.0) for n, on in enumerate((False, True, True, False))]
    step_s = [0.75] * 5
    steps = cost.by_block(0, round(3.75e9), step_s, blocks)
    assert [len(each) for each in steps] == [1, 2, 1, 1]


def test_the_stopwatch_finds_the_window(scripts: SimpleNamespace) -> None:
    """Warm-up waits every few steps; a message that was lost costs nothing, since each carries the count."""
    said = [("sync", 0.0, 1), *(("step", n, n) for n in range(1, 6)), ("sync", 6.0, 2)]
    said += [("step", 6.0 + n / 10, 5 + n) for n in range(1, 31) if n != 7] + [("sync", 10.0, 3), ("sync", 10.5, 4)]
    notes = [{"kind": kind, "at_s": at_s, "number": number} for kind, at_s, number in said]
    assert scripts.outside.longest(notes) == (6.0, 10.0, 30)


def test_a_kept_sampler_is_charged_for_one_launch(scripts: SimpleNamespace) -> None:
    """Its process has the CPU time of the launches before in it, and of its start; one started anew has not."""
    first = [{"kind": "sampler", "at_s": at_s, "pid": 7, "cpu_s": 0.2 + at_s / 200} for at_s in (0.0, 20.0, 40.0)]
    second = [{"kind": "sampler", "at_s": at_s, "pid": 7, "cpu_s": 0.2 + at_s / 200} for at_s in (45.0, 80.0)]
    told = scripts.outside.cpu_of_sampler(first, None, [])
    assert (told["ours"], told["with_start"], told["ok"]) == (pytest.approx(1.0), True, None)
    told = scripts.outside.cpu_of_sampler(second, None, first)
    assert (told["ours"], told["with_start"], told["ok"]) == (pytest.approx(0.5), False, True)
    anew = [note | {"pid": 8, "cpu_s": 0.01 * note["at_s"]} for note in second]
    told = scripts.outside.cpu_of_sampler(anew, None, first)
    assert (told["cpu_s"], told["with_start"]) == (pytest.approx(0.8), True)


@pytest.fixture
def recorded(scripts: SimpleNamespace):
    """(trace, edges of the load) of one H200 under a square wave of matmuls."""
    trace, kept = scripts.wave.read_again(ROOT / "tests" / "data" / "traces" / "h200-sxm-square-wave")
    return trace, kept["edges"]


def test_lag_and_refresh_on_record(scripts: SimpleNamespace, recorded) -> None:
    """The figures of the docs, from readings that jitter, repeat and fail to come as only real ones do."""
    told = scripts.lag.estimates(*recorded, scripts.wave.LATEST_S)
    lags_s = {
        "energy_j": 0.020, "power_instant_w": 0.090, "sm_clock_mhz": 0.126, "core_temp_c": 0.168, "hbm_temp_c": 0.366,
        "power_average_w": 0.534, "tensor_active_share": 0.664, "power_ring_w": 0.010,
    }  # fmt: skip
    for quantity, lag_s in lags_s.items():
        assert told[quantity]["lag_s"] == pytest.approx(lag_s, abs=0.004), quantity
        assert told[quantity]["explained"] > 0.7, quantity
    for quantity in ("energy_j", "power_average_w"):
        assert told[quantity]["change_interval_mean_s"] == pytest.approx(0.1, abs=0.001), quantity
        assert told[quantity]["refresh_reason"] == "changes at most readings, 0.100 s apart on the mean"
    assert told["throttle_hw_thermal_ns"]["reason"] == "changed 0 times"


def test_counter_and_integral_agree_on_record(recorded) -> None:
    """Two ways to the same joules, over each time under load: the edges are where a lag or a stale edge would show."""
    trace, edges = recorded
    ((uuid, samples),) = trace.samples.items()
    seconds = []
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        window = DeviceWindow(
            uuid=uuid, line=trace.devices[uuid], samples=samples, begin_ns=begin.mono_ns, end_ns=end.mono_ns,
            period_ns=100_000_000, slow_period_ns=1_000_000_000,
        )  # fmt: skip
        if window.duration_s > 2:
            counter_j, integral_j = counter_energy(window).value, integral_energy(window).value
            assert integral_j == pytest.approx(counter_j, rel=0.02 if window.duration_s > 5 else 0.05)
            assert 600 < counter_j / window.duration_s < 710
            seconds.append(window.duration_s)
    assert len(seconds) == 14
