"""Time against energy."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records import METRICS, Launch, Pass, Status, Value, tier
from pytest_charllm.report.case import Case
from pytest_charllm.report.pareto import fronts, pareto_front
from pytest_charllm.scenario.key import parse_key

POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


@given(POINTS)
def test_a_point_is_on_the_front_unless_another_beats_it(points: list[tuple[int, int]]) -> None:
    """By the definition, spelled out: as good in both, better in one."""
    front = pareto_front(points)
    for (time, energy), kept in zip(points, front, strict=True):
        beaten = [(t, e) for t, e in points if t <= time and e <= energy and (t < time or e < energy)]
        assert kept is not bool(beaten)


@given(POINTS)
def test_the_fastest_and_the_thriftiest_are_on_the_front(points: list[tuple[int, int]]) -> None:
    """A front that lost its ends would advise against the best."""
    kept = [point for point, on in zip(points, pareto_front(points), strict=True) if on]
    assert min(points) in kept
    assert min(points, key=lambda point: (point[1], point[0])) in kept


@given(POINTS)
def test_along_the_front_faster_costs_more(points: list[tuple[int, int]]) -> None:
    """Otherwise one of two neighbours is not on it."""
    kept = sorted({point for point, on in zip(points, pareto_front(points), strict=True) if on})
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(kept))


def case(key: str, tokens_per_s: float, joules: float) -> Case:
    numbers = {"throughput": tokens_per_s, "energy_per_token": joules}
    values = {metric: Value(value=number, unit=METRICS[metric].unit) for metric, number in numbers.items()}
    launch = Launch(
        id=f"{key}.timed-1", scenario=parse_key(key), pass_=Pass.TIMED, window=tier("smoke", False).window,
        status=Status.COMPLETED,
    )  # fmt: skip
    measurement: Any = SimpleNamespace(values=values, number=lambda metric: numbers.get(metric))
    return Case(key=key, verdict="PASS", because="", measurements=[measurement], launches=[launch])


def test_one_work_at_several_clocks_is_one_table() -> None:
    """Layouts and clocks are what is chosen among; another model or another batch is other work."""
    table = fronts(
        [
            case("llama3-8b.8L.dp2.mb4.sm1500", 1000.0, 0.020),
            case("llama3-8b.8L.dp2.mb4.sm1200", 900.0, 0.015),
            case("llama3-8b.8L.tp2.mb8.sm1500", 800.0, 0.025),
            case("llama3-8b.8L.dp2.mb4", 1010.0, 0.021),
            case("llama3-1b.dp2.mb4.sm1200", 9000.0, 0.001),
        ]
    )
    assert [line.split()[0] for line in table.splitlines()[2:]] == [
        "llama3-8b.8L.dp2.mb4", "llama3-8b.8L.dp2.mb4.sm1500", "llama3-8b.8L.dp2.mb4.sm1200",
        "llama3-8b.8L.tp2.mb8.sm1500",
    ]  # fmt: skip
    assert [line.endswith("on the front") for line in table.splitlines()[2:]] == [True, True, True, False]


def test_without_clocks_there_is_no_table() -> None:
    """Every run of the suites would end with tables that nobody asked for."""
    assert fronts([case("llama3-8b.8L.dp2.mb4", 1010.0, 0.021), case("p2p.dp2", 1.0, 1.0)]) == ""
