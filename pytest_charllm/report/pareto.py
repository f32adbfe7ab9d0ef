"""Time against energy: of scenarios that do the same work at several SM clocks, those that none beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_charllm.report.case import Case
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import grid
from pytest_charllm.scenario import Layout, Scenario, Training

HEADERS = ("scenario", "SM clock", "tokens/s/GPU", "J/token", "time and energy")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of each (time, energy), both better the smaller: whether no other point is at most as large in both and smaller
    in one. Equal points are on the front together."""
    return [
        not any(other[0] <= time and other[1] <= energy and other != (time, energy) for other in points)
        for time, energy in points
    ]


def fronts(cases: Iterable[Case]) -> str:
    """A table for each work that was measured at several clocks; "" without any.

    Layouts of as many GPUs with the same global batch are one work: what is compared is how to do it, not how much.
    """
    works: dict[tuple[object, ...], list[tuple[Case, Scenario]]] = {}
    for case in cases:
        scenario = next((launch.scenario for launch in case.launches), None)
        if (
            scenario is not None
            and isinstance(scenario.work, Training)
            and case.value("throughput")
            and case.value("energy_per_token")
        ):
            works.setdefault(_work(scenario), []).append((case, scenario))
    tables = [_table(points) for points in works.values() if len({each.options.sm_clock for _, each in points}) > 1]
    return "\n\n".join(tables)


def _work(scenario: Scenario) -> tuple[object, ...]:
    training = replace(scenario.training, microbatch=1, global_batch=scenario.global_batch)
    options = replace(scenario.options, sm_clock=0)
    return training, options, scenario.engine, Layout(dp=scenario.layout.world)


def _table(points: Sequence[tuple[Case, Scenario]]) -> str:
    ordered = sorted(points, key=lambda point: -(point[0].value("throughput") or 0.0))
    numbers = [(1 / (case.value("throughput") or 1.0), case.value("energy_per_token") or 0.0) for case, _ in ordered]
    rows = [
        (
            case.key,
            f"{scenario.options.sm_clock} MHz" if scenario.options.sm_clock else "not locked",
            value("throughput", case.value("throughput")),
            value("energy_per_token", case.value("energy_per_token")),
            "on the front" if kept else "",
        )
        for (case, scenario), kept in zip(ordered, pareto_front(numbers), strict=True)
    ]
    return grid(HEADERS, rows, HEADERS[1:-1])
