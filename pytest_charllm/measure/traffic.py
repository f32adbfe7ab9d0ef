"""What training calls on each parallel axis, against what the links gave collectives of that size alone.

Many small messages leave links idle that a few large ones would fill: the CharLLM study's finding of tensor parallelism
joined with a pipeline, whose sends each rank splits by tp (MICRO 2025). Predicted calls and measured curves, so nothing
here is a measurement of the training itself (`achieved` is): it says how fast such calls can be where nothing else
happens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pytest_charllm.records import Measurement, numbers_of
from pytest_charllm.records.curve import latency
from pytest_charllm.scenario import Collective, Layout, Scenario, Sharding
from pytest_charllm.scenario.collective import SIZES, bus_factor
from pytest_charllm.scenario.traffic import Predicted, collectives

_CURVE_OF = {"send": "p2p", "recv": "p2p"}
_SENT: Mapping[str, Callable[[int], float]] = {
    "all-reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(("all-gather", "reduce-scatter", "all-to-all"), lambda ranks: (ranks - 1) / ranks),
    **dict.fromkeys(("send", "broadcast"), lambda ranks: 1.0),
    "recv": lambda ranks: 0.0,
}
"""Operation -> what a rank of that many sends of the whole tensor."""
PAIR = 2
"""Ranks of a curve that stands for sends between any two."""

Curve = Mapping[int, float]
"""Bytes of a message -> seconds of a call."""
Curves = Mapping[tuple[str, int], Curve]
"""By operation and number of ranks."""


class AxisTraffic(NamedTuple):
    """Calls of one kind on one axis of one rank in one step. `gb_per_s` is the bus bandwidth of messages of their mean
    size, `share` that over the best of the curve, `seconds` of all calls one after the other; None: `reason` says why.
    """

    axis: str
    op: str
    ranks: int
    calls: int
    mean_bytes: float
    gb_per_s: float | None = None
    share: float | None = None
    seconds: float | None = None
    reason: str = ""


def curves_of(scenarios: Mapping[Scenario, Sequence[Measurement]]) -> dict[tuple[str, int], Curve]:
    """The medians over each collective's launches; what is no collective is left out."""
    found: dict[tuple[str, int], Curve] = {}
    for scenario, launches in scenarios.items():
        if isinstance(scenario.work, Collective):
            known = {size: sorted(numbers_of(launches, latency(size))) for size in SIZES}
            curve = {size: times_s[len(times_s) // 2] for size, times_s in known.items() if times_s}
            if curve:
                found[scenario.work.op, scenario.layout.world] = curve
    return found


def axis_traffic(scenario: Scenario, curves: Curves, rank: int = 0) -> tuple[AxisTraffic, ...]:
    """Every kind of call of that rank, by axis. Raises `BadInput` where its traffic is not predicted."""
    return tuple(against(calls, scenario.layout, curves) for calls in collectives(scenario, rank))


def sent_bytes(scenario: Scenario, rank: int = 0) -> float:
    """Bytes that a rank sends to others in a step, each collective as a ring: the least without reductions in a switch.

    (n-1)/n of the whole tensor to gather, scatter or exchange it among n ranks, twice that to reduce it on all of them
    (Patarasuk and Yuan, JPDC 2009). Raises `BadInput` where its traffic is not predicted.
    """
    return sum(calls.bytes * _SENT[calls.op](_ranks(calls, scenario.layout)) for calls in collectives(scenario, rank))


def call_s(curve: Curve, size: float) -> float:
    """Seconds of a call of `size` bytes: between two measured sizes by a straight line, since a call takes a start and
    then a time for each byte; below the smallest its time, above the largest its bandwidth."""
    sizes = sorted(curve)
    if size <= sizes[0]:
        return curve[sizes[0]]
    if size >= sizes[-1]:
        return curve[sizes[-1]] * size / sizes[-1]
    above = bisect_left(sizes, size)
    low, high = sizes[above - 1], sizes[above]
    return curve[low] + (curve[high] - curve[low]) * (size - low) / (high - low)


def against(calls: Predicted, layout: Layout, curves: Curves) -> AxisTraffic:
    """Calls of one kind, beside the curve of their group's size."""
    op, ranks = _CURVE_OF.get(calls.op, calls.op), _ranks(calls, layout)
    mean = calls.bytes / calls.count
    told = AxisTraffic(calls.axis, calls.op, ranks, calls.count, mean)
    curve = curves.get((op, ranks)) or (curves.get((op, PAIR)) if op == "p2p" else None)
    if curve is None:
        return told._replace(reason=f"no curve of {op} between {ranks} ranks")
    factor, time_s = bus_factor(op, ranks), call_s(curve, mean)
    best = max(size / each for size, each in curve.items())
    return told._replace(
        gb_per_s=factor * mean / time_s / 1e9, share=min(1.0, mean / time_s / best), seconds=calls.count * time_s
    )


def _ranks(calls: Predicted, layout: Layout) -> int:
    """Of the group that the calls are between. Gradients are shared by all ranks of the same part of the model, so cp
    counts with dp; hsdp splits these into groups that shard and, across them, replicas."""
    if calls.axis == "world":
        return layout.world
    if calls.axis != "dp":
        return int(getattr(layout, calls.axis))
    if layout.sharding is not Sharding.HSDP:
        return layout.dp * layout.cp
    return layout.replicas if calls.op == "all-reduce" else layout.dp * layout.cp // layout.replicas
