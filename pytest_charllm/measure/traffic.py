"""What training calls on each parallel axis, against what the links gave collectives of that size alone.

Many small messages leave links idle that a few large ones would fill: the CharLLM study's finding of tensor parallelism
joined with a pipeline, whose sends each rank splits by tp (MICRO 2025). Predicted calls and measured curves, so nothing
here is a measurement of the training itself (`achieved` is): it says how fast such calls can be where nothing else
happens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pytest_charllm.records import Measurement, numbers_of
from pytest_charllm.records.curve import latency
from pytest_charllm.scenario import Collective, Layout, Scenario
from pytest_charllm.scenario.collective import SIZES, bus_factor, label
from pytest_charllm.scenario.traffic import every_call
from pytest_charllm.scenario.traffic.calls import Call

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
    size, `share` that over the best of the curve, `seconds` of all calls one after the other; None: `reason` says why,
    or that they are larger than anything on the curve, whose bandwidth is then taken for theirs.
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
    """Every kind of call of that rank, by axis and size of group. Raises `BadInput` where its traffic is not
    predicted."""
    kinds: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for call in every_call(scenario, rank):
        kinds[call.axis, call.op, group_of(call, scenario.layout)].append(call.bytes)
    return tuple(against(*kind, len(sizes), sum(sizes), curves) for kind, sizes in sorted(kinds.items()))


def sent_bytes(scenario: Scenario, rank: int = 0) -> float:
    """Bytes that a rank sends to others in a step, each collective as a ring: the least without reductions in a switch.

    (n-1)/n of the whole tensor to gather, scatter or exchange it among n ranks, twice that to reduce it on all of them
    (Patarasuk and Yuan, JPDC 2009). Raises `BadInput` where its traffic is not predicted.
    """
    return sum(call.bytes * _SENT[call.op](group_of(call, scenario.layout)) for call in every_call(scenario, rank))


def sent_by_each(scenario: Scenario) -> tuple[float, float]:
    """`sent_bytes`, mean over the ranks; and the least that they may send where a switch reduces and copies.

    NVLink SHARP takes a rank's part once and hands it to all others, where a ring passes it on from each to the next:
    1/(n-1) of the bytes, n being the largest group. Between two there is no such thing, nor for sends.
    """
    sent = [sent_bytes(scenario, rank) for rank in range(scenario.layout.world)]
    shared = [call for call in every_call(scenario) if call.op not in _CURVE_OF and call.axis != "world"]
    groups = [group_of(call, scenario.layout) for call in shared]
    mean = sum(sent) / len(sent)
    return mean, mean / max(1, max(groups, default=1) - 1)


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


def against(axis: str, kind: str, ranks: int, calls: int, total_bytes: int, curves: Curves) -> AxisTraffic:
    """Calls of one kind between so many ranks, beside the curve of a group of that size."""
    op, mean = _CURVE_OF.get(kind, kind), total_bytes / calls
    told = AxisTraffic(axis, kind, ranks, calls, mean)
    curve = curves.get((op, ranks)) or (curves.get((op, PAIR)) if op == "p2p" else None)
    if curve is None:
        return told._replace(reason=f"no curve of {op} between {ranks} ranks")
    factor, time_s = bus_factor(op, ranks), call_s(curve, mean)
    best = max(size / each for size, each in curve.items())
    beyond = f"beyond the curve's {label(max(curve))}" if mean > max(curve) else ""
    return told._replace(
        reason=beyond,
        gb_per_s=factor * mean / time_s / 1e9,
        share=min(1.0, mean / time_s / best),
        seconds=calls * time_s,
    )


def group_of(call: Call, layout: Layout) -> int:
    """Ranks that the call is between. Gradients are shared by all ranks of the same part of the model, so cp counts
    with dp."""
    if call.ranks is not None:
        return call.ranks
    if call.axis == "world":
        return layout.world
    return layout.dp * layout.cp if call.axis == "dp" else int(getattr(layout, call.axis))
