"""What training's own calls achieved on each axis in a traced step, beside what was predicted of them and what the
links give such calls alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_charllm.measure.traffic import Curves, against, group_of
from pytest_charllm.records import RankReport
from pytest_charllm.records.breakdown import AxisTime
from pytest_charllm.records.curve import LATENCY_BOUND
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.collective import OPS, bus_factor
from pytest_charllm.scenario.traffic import Predicted, collectives, compiled_reductions, every_call
from pytest_charllm.scenario.traffic.calls import Call

_SENT = ("send", "recv")


class Achieved(NamedTuple):
    """Calls of one kind on one axis of one rank in one traced step. `busy_s`: their kernels ran; `moving_s`: without
    the wait for the last rank to come. `gb_per_s` is their bus bandwidth while moving, or busy where it is not known
    when that was; `of_curve` that over what the curve gives messages of their mean size: of messages whose start takes
    longer than their way there is none, since a kernel does not show the start that a curve has in it.

    `axis` None: kernels that belong to no call or to no axis. `reason`: what differs from the prediction or is missing.
    """

    axis: str | None
    op: str
    calls: int
    mean_bytes: float | None = None
    busy_s: float | None = None
    moving_s: float | None = None
    gb_per_s: float | None = None
    of_curve: float | None = None
    reason: str = ""


def achieved(scenario: Scenario, curves: Curves, report: RankReport) -> tuple[Achieved, ...]:
    """By axis, what belongs to none last; nothing of a report that does not have these times. Raises `BadInput` where
    the scenario's traffic is not predicted."""
    if not report.axis_times:
        return ()
    predicted = {(each.axis, each.op): each for each in collectives(scenario, report.rank)}
    seen = {(each.axis, each.op) for each in report.axis_times}
    unseen = [
        Achieved(each.axis, each.op, 0, reason=f"{each.count:,} predicted")
        for key, each in predicted.items()
        if key not in seen
    ]
    of_axes = [
        _achieved(each, predicted.get((each.axis, each.op)), scenario, curves, report.rank)
        for each in report.axis_times
        if each.axis is not None
    ]
    return (*sorted([*of_axes, *unseen]), *(_of_none(each) for each in report.axis_times if each.axis is None))


def _achieved(time: AxisTime, expected: Predicted | None, scenario: Scenario, curves: Curves, rank: int) -> Achieved:
    assert time.axis is not None, "kernels of no axis are told apart"
    assert time.bytes is not None, "calls on an axis have a size"
    groups = _groups(time.axis, time.op, scenario, rank)
    alone = against(time.axis, time.op, max(groups), time.calls, time.bytes, curves)
    spent_ns = time.busy_ns if time.moving_ns is None else time.moving_ns
    rate = None
    if spent_ns and len(groups) == 1 and (time.op in OPS or time.op in _SENT):
        rate = (1.0 if time.op in _SENT else bus_factor(time.op, alone.ranks)) * time.bytes / spent_ns
    reasons = [_difference(time, expected, scenario, rank)]
    if len(groups) > 1:
        reasons.append(f"between {' and '.join(map(str, sorted(groups)))} ranks, so no rate")
    if time.busy_ns is None:
        reasons.append("kernels not seen")
    elif time.moving_ns is None:
        reasons.append("with waiting")
    return Achieved(
        axis=time.axis,
        op=time.op,
        calls=time.calls,
        mean_bytes=alone.mean_bytes,
        busy_s=_seconds(time.busy_ns),
        moving_s=_seconds(time.moving_ns),
        gb_per_s=rate,
        of_curve=rate / alone.gb_per_s if rate and alone.gb_per_s and alone.mean_bytes > LATENCY_BOUND else None,
        reason=_joined(reasons),
    )


def _groups(axis: str, op: str, scenario: Scenario, rank: int) -> set[int]:
    """Ranks of the groups of such calls: as predicted, else of the axis."""
    calls = [call for call in every_call(scenario, rank) if (call.axis, call.op) == (axis, op)]
    return {group_of(call, scenario.layout) for call in calls or [Call(op, axis, 0)]}


def _of_none(time: AxisTime) -> Achieved:
    """What the trace does not tie to an axis."""
    return Achieved(
        axis=None,
        op=time.op,
        calls=time.calls,
        mean_bytes=None if time.bytes is None else time.bytes / time.calls,
        busy_s=_seconds(time.busy_ns),
        reason="kernels of no call" if time.bytes is None else "a group of no axis",
    )


def _difference(time: AxisTime, expected: Predicted | None, scenario: Scenario, rank: int) -> str:
    """Of what was called from what is predicted. DDP of compiled blocks may make other buckets of the same bytes."""
    if expected is None:
        return "none predicted"
    reductions = compiled_reductions(scenario, rank) if (time.axis, time.op) == ("dp", "all-reduce") else None
    allowed = reductions if reductions is not None else (expected.count,)
    if time.calls not in allowed:
        return f"{expected.count:,} predicted"
    return "" if time.bytes == expected.bytes else f"{expected.bytes:,} bytes predicted"


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
