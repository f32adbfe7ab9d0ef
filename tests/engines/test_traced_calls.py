"""Kernels of communication and the calls that they belong to: a recorded trace, and what traces may lack.

``nccl_calls.json`` is rank 0 of two H200s, torch 2.11 and NCCL: each kind of call once over two process groups, the
default one ("0") and another ("1"), cut down to calls, ranges and kernels, and put into a window.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.engines.native import by_axis
from pytest_charllm.engines.native.traced_calls import (
    WINDOW,
    Call,
    Event,
    Issued,
    axis_times,
    durations,
    issued,
    read_trace,
    shortest,
)
from pytest_charllm.records.breakdown import AxisTime, Interval, Kernel

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")

RECORDED = Path(__file__).parents[1] / "data" / "nccl_calls.json"
MIB = 1 << 20
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def recorded() -> list[Event]:
    return read_trace(RECORDED.read_bytes())


def event(name: str, ts: float, dur: float, cat: str, tid: int = 7, **args: Any) -> Event:
    return Event(name=name, ts=ts, dur=dur, cat=cat, tid=tid, args=msgspec.Raw(json.dumps(args).encode()))


def window(dur: float = 1000.0) -> Event:
    return event(WINDOW, 0.0, dur, "user_annotation", tid=1)


def call(id_: int, ts: float, name: str = "allreduce", group: str = "3", dtype: str = "Float", **args: Any) -> Event:
    shown = {
        "External id": id_, "Collective name": name, "Process Group Name": group, "Group size": 2, "dtype": dtype,
        "In msg nelems": 256, "Out msg nelems": 256,
    }  # fmt: skip
    return event("record_param_comms", ts, 5.0, "cpu_op", tid=1, **(shown | args))


def kernel(ts: float, dur: float, id_: int | None = None, name: str = ALL_REDUCE) -> Event:
    return event(name, ts, dur, "kernel", **({} if id_ is None else {"External id": id_}))


def test_every_kernel_of_a_recorded_trace_finds_its_call() -> None:
    """Of ten kernels two carry no id, since their calls were coalesced: left out, a pipeline would send nothing."""
    launched, loose = issued(recorded(), rank=0)
    assert loose == []
    told = [(call.group, call.op, call.bytes / MIB) for each in launched for call in each.calls]
    assert told == [
        ("0", "all-reduce", 8), ("1", "all-reduce", 8), ("0", "all-gather", 8), ("1", "reduce-scatter", 8),
        ("0", "all-to-all", 8), ("1", "send", 4), ("1", "recv", 4), ("0", "all-reduce", 8), ("0", "all-gather", 8),
        ("1", "reduce-scatter", 8), ("0", "all-reduce", 12),
    ]  # fmt: skip
    assert [len(each.kernels) for each in launched] == [1] * 10
    assert [int(each.kernels[0].end - each.kernels[0].begin) for each in launched] == pytest.approx(
        [45_215, 43_904, 36_416, 30_304, 20_512, 21_152, 46_528, 35_489, 34_625, 59_328], abs=2
    )


def test_what_a_recorded_trace_comes_to_by_axis() -> None:
    """The other rank saw the same calls, and its second reduce-scatter waited for nobody."""
    launched, loose = issued(recorded(), rank=0)
    mine = durations(launched)
    ranks, times = mine["1: reduce-scatter"]
    other = {**mine, "1: reduce-scatter": (ranks, [times[0], 30_000])}
    found = axis_times(launched, loose, lambda group, op, size: {"0": "dp", "1": "tp"}[group], shortest([mine, other]))
    assert [(each.axis, each.op, each.calls) for each in found] == [
        ("dp", "all-gather", 2), ("dp", "all-reduce", 3), ("dp", "all-to-all", 1), ("tp", "all-reduce", 1),
        ("tp", "recv", 1), ("tp", "reduce-scatter", 2), ("tp", "send", 1),
    ]  # fmt: skip
    scatters = found[5]
    assert scatters.bytes == 16 * MIB
    assert scatters.busy_ns == pytest.approx(30_304 + 34_625, abs=3)
    assert scatters.moving_ns == pytest.approx(30_304 + 30_000, abs=2)


def test_only_the_window_counts() -> None:
    """The step before it is traced too, for the profiler's sake."""
    events = [call(1, -50.0), kernel(-40.0, 5.0, 1), window(), call(2, 10.0), kernel(20.0, 4.0, 2)]
    launched, loose = issued(events, rank=0)
    assert (launched, loose) == (
        [Issued((Call("3", "all-reduce", 1024, 2, "3: all-reduce"),), (Interval(20_000, 24_000),))],
        [],
    )


def test_kernels_of_no_call_are_told() -> None:
    """Asynchronous tensor parallelism copies over symmetric memory, past every process group: left out, its axis would
    look idle, and given to one, it would be a guess."""
    events = [
        window(), kernel(10.0, 4.0, 77), kernel(12.0, 4.0), kernel(30.0, 5.0, name="Memcpy PtoP (Device -> Device)"),
        kernel(50.0, 9.0, name="gemm"),
    ]  # fmt: skip
    launched, loose = issued(events, rank=0)
    nothing = {"axis": None, "bytes": None, "moving_ns": None}
    assert axis_times(launched, loose, lambda *_: "tp", {}) == (
        AxisTime(op="Memcpy PtoP", calls=1, busy_ns=5000, **nothing),
        AxisTime(op="ncclDevKernel_AllReduce_Sum_bf16_RING_LL", calls=2, busy_ns=6000, **nothing),
    )


def test_a_call_without_a_kernel_leaves_no_time() -> None:
    """Two messages over the time of one would be twice the rate."""
    launched, _ = issued([window(), call(1, 10.0), kernel(12.0, 4.0, 1), call(2, 30.0)], rank=0)
    (row,) = axis_times(launched, [], lambda *_: "dp", shortest([durations(launched)] * 2))
    assert (row.calls, row.bytes, row.busy_ns, row.moving_ns) == (2, 2048, None, None)


def test_a_group_that_the_engine_does_not_know() -> None:
    """A library's own group is no axis, and no reason to fail."""
    launched, _ = issued([window(), call(1, 10.0, group="9"), kernel(12.0, 4.0, 1)], rank=0)
    (row,) = axis_times(launched, [], lambda *_: None, {})
    assert (row.axis, row.op, row.bytes, row.busy_ns, row.moving_ns) == (None, "all-reduce", 1024, 4000, None)


def test_what_was_coalesced_is_what_came_right_before() -> None:
    """A wait in between launches nothing; a call with a kernel of its own ends what waits before it."""
    events = [
        window(), call(1, 5.0), call(2, 10.0), kernel(11.0, 2.0, 2), call(3, 20.0, "send", **{"Dst Rank": 1}),
        call(4, 22.0, "wait", dtype="Byte"), call(5, 25.0, "recv", **{"Src Rank": 1}),
        event("nccl:coalesced", 30.0, 5.0, "user_annotation", tid=1, **{"External id": 6}),
        event("nccl:coalesced", 40.0, 8.0, "gpu_user_annotation", tid=7, **{"External id": 6}), kernel(40.001, 7.998),
    ]  # fmt: skip
    launched, loose = issued(events, rank=0)
    assert loose == []
    assert [[each.op for each in one.calls] for one in launched] == [["all-reduce"], ["all-reduce"], ["send", "recv"]]
    assert [len(one.kernels) for one in launched] == [0, 1, 1]
    assert [each.series for each in launched[2].calls] == ["3: 0 to 1", "3: 1 to 0"]


def test_a_trace_that_cannot_be_understood() -> None:
    """A size that is guessed is a rate that is wrong."""
    with pytest.raises(ValueError, match="does not have the step"):
        issued([call(1, 5.0)], rank=0)
    with pytest.raises(ValueError, match="the size of a 'ComplexHalf' is not known"):
        issued([window(), call(1, 5.0, dtype="ComplexHalf")], rank=0)


@given(st.lists(st.lists(st.integers(1, 1000), min_size=3, max_size=3), min_size=2, max_size=4))
def test_a_call_takes_what_it_took_least(times: list[list[int]]) -> None:
    """A sum on one rank has the waiting in it, and the least of all sums still that of single calls."""
    found = shortest([{"3: all-reduce": (len(times), each)} for each in times])["3: all-reduce"]
    assert sum(found) <= min(sum(each) for each in times)
    assert all(least in column for least, column in zip(found, zip(*times, strict=True), strict=True))


@pytest.mark.parametrize(
    "seen",
    [
        [{"a": (2, [5, 6])}],
        [{"a": (2, [5, 6])}, {}],
        [{"a": (2, [5, 6])}, {"a": (2, [5])}],
        [{"a": (2, [5, 6])}, {"a": (2, [5, None])}],
    ],
)
def test_calls_that_ranks_did_not_see_alike_are_not_matched(seen: list[Any]) -> None:
    """The third call of one rank against the fourth of another is the time of neither."""
    assert shortest(seen) == {}


intervals = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 80)), min_size=1, max_size=6)


@given(intervals)
def test_busy_is_at_most_the_sum_and_at_least_the_longest(spans: list[tuple[int, int]]) -> None:
    """Calls on two streams at the same time count once."""
    each = Call("3", "all-reduce", 1024, 2, "3: all-reduce")
    launched = [Issued((each,), (Interval(begin, begin + length),)) for begin, length in spans]
    (row,) = axis_times(launched, [], lambda *_: "dp", shortest([durations(launched)] * 2))
    lengths = [length for _, length in spans]
    assert row.busy_ns is not None
    assert max(lengths) <= row.busy_ns <= sum(lengths) == row.moving_ns


class Step:
    """Calls nothing."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, index: int) -> None:
        self.done.append(index)

    def axis_of(self, group: str, op: str, size: int) -> str | None:
        return {"0": "dp", "1": "tp"}.get(group)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two ranks that see the same."""
    monkeypatch.setattr(by_axis.dist, "all_gather_object", lambda into, mine: into.__setitem__(slice(None), [mine] * 2))
    return SimpleNamespace(rank=0, size=2, barrier=lambda: None, synchronize=lambda: None)


def test_times_come_from_the_trace_of_the_last_step(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the record, by a real profiler whose trace is replaced by the recorded one."""
    step = Step()
    monkeypatch.setattr(by_axis, "read_trace", lambda text: recorded() if b"traceEvents" in text else [])
    times, notes = by_axis.time_by_axis(step, 7, world, lambda: None)  # type: ignore[arg-type]
    assert step.done == [7, 8]
    assert notes == ()
    assert {each.axis for each in times} == {"dp", "tp"}
    assert all(each.moving_ns == each.busy_ns for each in times)


@pytest.mark.parametrize("broken", ["profile", "read_trace"])
def test_no_trace_is_a_note(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """An exception on one rank leaves the others in an exchange that it does not come to."""

    def fail(*_: Any) -> None:
        raise RuntimeError("out of buffers\nat 0x7f")

    step = Step()
    if broken == "profile":
        monkeypatch.setattr(by_axis.profile, "start", fail)
    else:
        monkeypatch.setattr(by_axis, broken, fail)
    times, notes = by_axis.time_by_axis(step, 7, world, lambda: None)  # type: ignore[arg-type]
    assert (times, notes, step.done) == ((), ("no time by axis: RuntimeError: out of buffers",), [7, 8])


def test_a_trace_without_calls_is_a_note(world: SimpleNamespace) -> None:
    """No times and no word read like a step that calls nothing. A real trace, of a CPU."""
    times, notes = by_axis.time_by_axis(Step(), 7, world, lambda: None)  # type: ignore[arg-type]
    assert (times, notes) == ((), ("no time by axis: the trace shows no call of a process group",))


def test_a_kernel_is_a_kernel() -> None:
    """What belongs to no call keeps its stream and its place in the step."""
    assert issued([window(), kernel(10.0, 4.0)], rank=0)[1] == [Kernel(7, ALL_REDUCE, 10_000, 14_000)]
