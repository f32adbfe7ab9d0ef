"""Tests about trends, without launches: each holds where the numbers are as the trend says, and breaks where they are
not. A trend that no number can break says nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_charllm import Scenario, TrendBroken
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.plugin.parametrize import collect
from pytest_charllm.report.published import near_to
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.published import published

ROOT = Path(__file__).parents[2]


class Told(NamedTuple):
    """In the place of `Measured`."""

    scenario: Scenario
    values: dict[str, float]

    def value(self, metric: str) -> float:
        return self.values[metric]


class Family:
    """In the place of `charllm`: every other scenario has these values."""

    def __init__(self, values: dict[str, float]) -> None:
        self.values = values
        self.asked: list[Scenario] = []

    def measure(self, scenario: Scenario | str) -> Told:
        found = parse_key(scenario) if isinstance(scenario, str) else scenario
        self.asked.append(found)
        return Told(found, self.values)


@pytest.fixture
def trend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A function of a suite file by ``file::function``."""
    monkeypatch.syspath_prepend(str(ROOT))

    def found(name: str) -> Any:
        file, _, function = name.partition("::")
        return getattr(importlib.import_module(f"suites.{file}"), function)

    return found


def rows(function: Any, machine: str) -> list[Scenario]:
    marks = [mark for mark in function.pytestmark if mark.name == "charllm"]
    return [item.planned.scenario for item in collect(marks, parse_assume(machine), None)]


SEEN = {"step_time": 2.0, "throttle_power_cap": 0.3}
"""Steps long enough for a power sensor, and not all of them at the cap."""

# The trend, what its row measured, what the other did, and what else that one could have measured to break it.
TRENDS = [
    ("test_parallelism::test_deep_pipelines_throttle_more", {"sm_clock": 1500}, {"sm_clock": 1600}, {"sm_clock": 1400}),
    (
        "test_optimizations::test_recomputation",
        {"peak_memory": 50, "step_time": 1.25},
        {"peak_memory": 70, "step_time": 1.0},
        {"peak_memory": 40, "step_time": 1.0},
    ),
    (
        "test_optimizations::test_recomputation",
        {"peak_memory": 50, "step_time": 1.25},
        {"peak_memory": 70, "step_time": 1.0},
        {"peak_memory": 70, "step_time": 0.5},
    ),
    (
        "test_optimizations::test_recomputation",
        {"peak_memory": 50, "step_time": 1.25},
        {"peak_memory": 70, "step_time": 1.0},
        {"peak_memory": 70, "step_time": 1.5},
    ),
    ("test_optimizations::test_switch_without_effect", {"throughput": 100}, {"throughput": 101}, {"throughput": 90}),
    ("test_optimizations::test_switch_without_effect", {"throughput": 100}, {"throughput": 99}, {"throughput": 110}),
    ("test_optimizations::test_overlap_heats", {"core_temp_p95": 70}, {"core_temp_p95": 68}, {"core_temp_p95": 71}),
    (
        "test_optimizations::test_recomputation_cools_deep_pipelines",
        {"sm_clock": 1600}, {"sm_clock": 1500}, {"sm_clock": 1700},
    ),
    (
        "test_optimizations::test_recomputation_heats_data_parallel",
        {"sm_clock": 1500}, {"sm_clock": 1600}, {"sm_clock": 1400},
    ),
    ("test_microbatch::test_larger_ones_peak_higher", {"peak_power": 800}, {"peak_power": 750}, {"peak_power": 850}),
    (
        "test_microbatch::test_larger_ones_are_burstier",
        {"power_burstiness": 0.3} | SEEN, {"power_burstiness": 0.1} | SEEN, {"power_burstiness": 0.4} | SEEN,
    ),
    (
        "test_lora::test_ten_times_as_efficient",
        {"throughput": 400, "energy_per_token": 1.0},
        {"throughput": 100, "energy_per_token": 3.0},
        {"throughput": 200, "energy_per_token": 2.0},
    ),
    ("test_scaling::test_weak_scaling_keeps_its_tokens", {"throughput": 95}, {"throughput": 100}, {"throughput": 130}),
    ("test_moe::test_routing_does_not_pay", {"throughput": 90}, {"throughput": 100}, {"throughput": 80}),
    ("test_precision::test_fp8_pays_where_layers_are_wide", {"throughput": 12}, {"throughput": 10}, {"throughput": 13}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "here", "other", "broken"), TRENDS, ids=[row[0].partition("::")[2] for row in TRENDS])
def test_trend_holds_and_breaks(
    trend: Any, name: str, here: dict[str, float], other: dict[str, float], broken: dict[str, float]
) -> None:
    """A comparison the wrong way round, or of a row with itself; an error that is not `TrendBroken` would be red."""
    function = trend(name)
    row = rows(function, "h200:1x8")[-1]
    family = Family(other)
    function(Told(row, here), family)
    assert all(scenario.key != row.key for scenario in family.asked)
    with pytest.raises(TrendBroken, match="expected at"):
        function(Told(row, here), Family(broken))


@pytest.mark.parametrize("name", sorted({row[0] for row in TRENDS}))
def test_other_row_runs_where_the_row_does(trend: Any, name: str) -> None:
    """A counterpart that no machine can run would make the trend a skip for ever."""
    function = trend(name)
    machine = parse_assume("h200:1x8")
    hardware = CATALOGUE[machine.variant]
    for row in rows(function, "h200:1x8"):
        family = Family({})
        with pytest.raises(KeyError):
            function(Told(row, {}), family)
        other = [infeasible(scenario, hardware, machine) for scenario in family.asked]
        assert other
        assert not any(other) or infeasible(row, hardware, machine), other
        assert all(scenario == parse_key(scenario.key) for scenario in family.asked)


@pytest.mark.parametrize(
    ("why", "values"),
    [("within a step of 0.2 s", {"step_time": 0.2}), ("at its cap for 100 %", {"throttle_power_cap": 1.0})],
)
def test_bursts_that_cannot_be_seen_are_inconclusive(trend: Any, why: str, values: dict[str, float]) -> None:
    """A sensor that averages over steps, or a card that is always at its limit, tells of no burst, and of no calm."""
    function = trend("test_microbatch::test_larger_ones_are_burstier")
    row = rows(function, "h200:1x8")[0]
    clear = {"power_burstiness": 0.3} | SEEN
    for here, other in ((clear | values, clear), (clear, clear | values)):
        with pytest.raises(pytest.skip.Exception, match=f"INCONCLUSIVE: .*{why}"):
            function(Told(row, here), Family(other))


@pytest.mark.parametrize("schedule", ["pp8", "pp8+gpipe", "pp8+interleaved-1f1b"])
def test_bubble_follows_the_formula(trend: Any, schedule: str) -> None:
    """With p stages and m microbatches m/(m+p-1) of a step is work: the trend must expect no other gain."""
    function = trend("test_parallelism::test_bubble")
    (row,) = [each for each in rows(function, "h200:1x8") if each.key == f"llama3-1b.{schedule}.mb1.gb16"]
    stages = row.layout.stages_per_rank
    busy = {m: stages * m / (stages * m + 7) for m in (16, 64)}
    function(Told(row, {"throughput": busy[16]}), Family({"throughput": busy[64]}))
    for gain in (0.8, 1.2):
        with pytest.raises(TrendBroken):
            function(Told(row, {"throughput": busy[16]}), Family({"throughput": gain * busy[64]}))


@pytest.mark.parametrize(
    ("speeds", "broken"),
    [
        ((1, 2, 3, 4), False),
        ((4, 3, 2, 1), False),
        ((1, 3, 2.99, 3), False),
        ((3, 1, 2, 1), True),
        ((1, 4, 2, 3), True),
    ],
)
def test_knee_has_one_hill(trend: Any, speeds: tuple[float, ...], broken: bool) -> None:
    """The largest value at either end, noise on the way, and a valley on either side."""
    function = trend("test_microbatch::test_knee")
    row = rows(function, "h200:1x8")[0]
    told: list[tuple[str, object]] = []

    class Swept(Family):
        def measure(self, scenario: Scenario | str) -> Told:
            self.values = {"throughput": speeds[(1, 2, 4, 8).index(scenario.training.microbatch)]}  # type: ignore[union-attr]
            return super().measure(scenario)

    arguments = Told(row, {"throughput": speeds[0]}), Swept({}), lambda *what: told.append(what)
    if broken:
        with pytest.raises(TrendBroken, match="toward the peak"):
            function(*arguments)
    else:
        function(*arguments)
    assert told == [("knee", (1, 2, 4, 8)[speeds.index(max(speeds))])]


def test_energy_is_power_times_time(trend: Any) -> None:
    """Joules of one GPU for tokens of all, or the other way round."""
    function = trend("test_parallelism::test_energy_is_power_times_time")
    row = rows(function, "h200:1x8")[0]
    whole = {"mean_power": 700.0, "throughput": 70_000.0, "energy_per_token": 0.01}
    function(Told(row, whole))
    for factor in (1 / 8, 0.94, 1.06, 8):
        with pytest.raises(TrendBroken):
            function(Told(row, {**whole, "energy_per_token": 0.01 * factor}))


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("test_precision::test_llama3_8b", "h200:1x8"),
        ("test_parallelism::test_llama3_8b", "h100:1x8"),
        ("test_parallelism::test_llama3_70b", "h100:8x8"),
        ("test_parallelism::test_gpt3_175b", "h100:8x8"),
    ],
)
def test_published_figures_have_rows_to_stand_beside(trend: Any, name: str, machine: str) -> None:
    """Figures of whole models on hardware on which the suites train none but reduced ones are read by nobody."""
    variant = parse_assume(machine).variant
    figures = published(ROOT / "baselines")
    assert any(near_to(row.key, variant, figures) for row in rows(trend(name), machine))


def test_findings_of_the_study_do_not_fail_a_night(trend: Any) -> None:
    """They come from one measured step on one cluster; what follows from how things work is held without mercy."""
    soft = {name for name, *_ in TRENDS if any(mark.name == "xfail" for mark in trend(name).pytestmark)}
    assert {name.partition("::")[2] for name in soft} == {
        "test_deep_pipelines_throttle_more",
        "test_overlap_heats",
        "test_recomputation_cools_deep_pipelines",
        "test_recomputation_heats_data_parallel",
        "test_larger_ones_peak_higher",
        "test_larger_ones_are_burstier",
        "test_ten_times_as_efficient",
    }
    for name in soft:
        (mark,) = [mark for mark in trend(name).pytestmark if mark.name == "xfail"]
        assert mark.kwargs["raises"] is TrendBroken
        assert mark.kwargs["strict"] is False
