"""Which call over which process group a kernel of communication belongs to, from a trace of host and device. Pure.

torch records a `record_param_comms` on the host for every call that a process group gets, and the kernels that were
launched within it carry its id. Calls that are coalesced, as sends of a pipeline are, launch nothing themselves: the
range `nccl:coalesced` does that follows them in their thread, and a range of the same id lies around its kernels on the
device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pytest_charllm.records.breakdown import AxisTime, Interval, Kernel, covered, is_communication

WINDOW = "charllm: the step by axis"
"""The range on the host around the step that counts, until the device has nothing left to do of it."""
_CALL, _COALESCED = "record_param_comms", "nccl:coalesced"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

_OPS = {
    "allreduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "_allgather_base": "all-gather",
    "all_gather": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all": "all-to-all",
    "all_to_allv": "all-to-all",
    "send": "send",
    "recv": "recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""torch's name -> that of `Collective`. Any other call keeps torch's."""
_NO_DATA = {"", "wait", "barrier", "init"}

_BYTES = {
    "Bool": 1, "Byte": 1, "Char": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One of a Chrome trace, in microseconds. `tid` is a thread on the host, a stream on the device."""

    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    traceEvents: list[Event]  # noqa: N815  # the format's own name


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What of an event's arguments is read. `to` and `source` are ranks of the world."""

    id: int | None = msgspec.field(name="External id", default=None)
    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    ranks: int = msgspec.field(name="Group size", default=0)
    dtype: str = ""
    sent: int = msgspec.field(name="In msg nelems", default=0)
    received: int = msgspec.field(name="Out msg nelems", default=0)
    to: int | None = msgspec.field(name="Dst Rank", default=None)
    source: int | None = msgspec.field(name="Src Rank", default=None)


class Call(NamedTuple):
    """One call of this rank. `bytes` of the full tensor, as in `Collective`.

    The n-th call of a `series` is the same on each of its `ranks`: of a collective those of its group, of a send
    the two between which it goes. None: the trace does not say which.
    """

    group: str
    op: str
    bytes: int
    ranks: int
    series: str | None


class Issued(NamedTuple):
    """Calls that were launched as one, and the kernels of that, in nanoseconds."""

    calls: tuple[Call, ...]
    kernels: tuple[Interval, ...]


Durations = Mapping[str, tuple[int, list[int | None]]]
"""Series -> (its ranks, nanoseconds of each call in order, None where no kernel was seen)."""


def read_trace(text: bytes) -> list[Event]:
    """Raises `msgspec.MsgspecError` for what is no Chrome trace."""
    return msgspec.json.decode(text, type=_Trace).traceEvents


def issued(events: Sequence[Event], rank: int) -> tuple[list[Issued], list[Kernel]]:
    """(calls of `rank` in the window, in order, with their kernels; kernels of communication that belong to none).

    Raises `ValueError` where there is no window, or a type whose size is not known.
    """
    window = next((each for each in events if each.name == WINDOW and each.cat == "user_annotation"), None)
    if window is None:
        raise ValueError("the trace does not have the step")
    inside = [each for each in events if window.ts <= each.ts <= window.ts + window.dur]
    calls = [(each, _arguments(each)) for each in inside if each.name == _CALL]
    ids = {arguments.id for _, arguments in calls if arguments.id is not None}
    ranges = defaultdict(list)
    for each in inside:
        if each.name == _COALESCED and each.cat == "gpu_user_annotation":
            ranges[each.tid].append((each.ts, each.ts + each.dur, _arguments(each).id))
    kernels: dict[int, list[Interval]] = defaultdict(list)
    loose: list[Kernel] = []
    for each in inside:
        if each.cat not in _ON_DEVICE or not is_communication(each.name):
            continue
        begin, end = (round(1e3 * (at - window.ts)) for at in (each.ts, each.ts + each.dur))
        owner = _arguments(each).id
        if owner not in ids:
            middle = each.ts + each.dur / 2
            owner = next((id_ for start, stop, id_ in ranges[each.tid] if start <= middle <= stop), None)
        if owner is None:
            loose.append(Kernel(each.tid if isinstance(each.tid, int) else 0, each.name, begin, end))
        else:
            kernels[owner].append(Interval(begin, end))
    ends = [each for each in inside if each.name == _COALESCED and each.cat == "user_annotation"]
    return _in_order([*calls, *((each, _arguments(each)) for each in ends)], kernels, rank), loose


def _in_order(
    on_host: list[tuple[Event, _Arguments]], kernels: Mapping[int, list[Interval]], rank: int
) -> list[Issued]:
    """Every call with its kernels. `on_host`: calls, and ranges that launch what came right before in their thread."""
    found: list[tuple[float, Issued]] = []
    waiting: dict[int | str, list[tuple[float, Call]]] = defaultdict(list)

    def unlaunched(thread: int | str) -> None:
        found.extend((at, Issued((call,), ())) for at, call in waiting.pop(thread, ()))

    for event, arguments in sorted(on_host, key=lambda each: each[0].ts):
        own = tuple(kernels.get(arguments.id, ())) if arguments.id is not None else ()
        if event.name == _COALESCED:
            calls = waiting.pop(event.tid, [])
            if calls:
                found.append((calls[0][0], Issued(tuple(call for _, call in calls), own)))
        elif arguments.collective not in _NO_DATA:
            call = _call(arguments, rank)
            if own:
                unlaunched(event.tid)
                found.append((event.ts, Issued((call,), own)))
            else:
                waiting[event.tid].append((event.ts, call))
    for thread in list(waiting):
        unlaunched(thread)
    return [each for _, each in sorted(found, key=lambda each: each[0])]


def _call(arguments: _Arguments, rank: int) -> Call:
    name, group = arguments.collective, arguments.group
    op = _OPS.get(name, name)
    if arguments.dtype not in _BYTES:
        raise ValueError(f"the size of a {arguments.dtype!r} is not known")
    elements = arguments.sent if op == "all-to-all" else max(arguments.sent, arguments.received)
    size = _BYTES[arguments.dtype] * elements
    if op == "send":
        return Call(group, op, size, 2, None if arguments.to is None else f"{group}: {rank} to {arguments.to}")
    if op == "recv":
        return Call(group, op, size, 2, None if arguments.source is None else f"{group}: {arguments.source} to {rank}")
    return Call(group, op, size, arguments.ranks, f"{group}: {op}")


def _arguments(event: Event) -> _Arguments:
    return msgspec.json.decode(event.args, type=_Arguments, strict=False)


def durations(launched: Sequence[Issued]) -> Durations:
    """How long each call's kernels ran, waiting included."""
    found: dict[str, tuple[int, list[int | None]]] = {}
    for each in launched:
        time_ns = int(covered(each.kernels)) if each.kernels else None
        for call in each.calls:
            if call.series is not None:
                found.setdefault(call.series, (call.ranks, []))[1].append(time_ns)
    return found


def shortest(of_ranks: Sequence[Durations]) -> dict[str, list[int]]:
    """Series -> nanoseconds of each call on the rank where it took least. Left out: a series that not all of its ranks
    saw alike."""
    found = {}
    for series in {name for each in of_ranks for name in each}:
        seen = [each[series] for each in of_ranks if series in each]
        calls = [times for _, times in seen]
        alike = {len(times) for times in calls} == {len(calls[0])} and len(calls) == seen[0][0]
        if alike and not any(time is None for times in calls for time in times):
            found[series] = [min(time for time in each if time is not None) for each in zip(*calls, strict=True)]
    return found


def axis_times(
    launched: Sequence[Issued],
    loose: Sequence[Kernel],
    axis_of: Callable[[str, str, int], str | None],
    least_ns: Mapping[str, Sequence[int]],
) -> tuple[AxisTime, ...]:
    """One entry an axis and operation, sorted, and after them what belongs to no axis. `axis_of`: as `TrainingStep`
    has it; `least_ns`: as of `shortest`."""
    rows: dict[tuple[str, str], _Row] = defaultdict(_Row)
    position: dict[str | None, int] = defaultdict(int)
    for each in launched:
        moved: dict[tuple[str, str], list[int | None]] = defaultdict(list)
        for call in each.calls:
            key = axis_of(call.group, call.op, call.bytes) or "", call.op
            rows[key].add(call, each.kernels)
            known = least_ns.get(call.series, ()) if call.series is not None else ()
            moved[key].append(known[position[call.series]] if position[call.series] < len(known) else None)
            position[call.series] += 1
        for key, times in moved.items():
            rows[key].move(times)
    found = [rows[key].told(*key) for key in sorted(rows, key=lambda key: (not key[0], key))]
    names: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in loose:
        names[_short(kernel.name)].append(kernel)
    return (*found, *(_of_no_call(name, kernels) for name, kernels in sorted(names.items())))


class _Row:
    """An `AxisTime` in the making."""

    def __init__(self) -> None:
        self._calls = self._bytes = 0
        self._kernels: list[Interval] = []
        self._all_seen = True
        self._moving_ns: int | None = 0

    def add(self, call: Call, kernels: Sequence[Interval]) -> None:
        self._calls += 1
        self._bytes += call.bytes
        self._kernels += kernels
        self._all_seen = self._all_seen and bool(kernels)

    def move(self, times_ns: Sequence[int | None]) -> None:
        """Of calls launched as one, which take as long as the longest of them."""
        known = [time for time in times_ns if time is not None]
        complete = self._moving_ns is not None and len(known) == len(times_ns)
        self._moving_ns = (self._moving_ns or 0) + max(known) if complete else None

    def told(self, axis: str, op: str) -> AxisTime:
        return AxisTime(
            axis=axis or None,
            op=op,
            calls=self._calls,
            bytes=self._bytes,
            busy_ns=int(covered(self._kernels)) if self._all_seen else None,
            moving_ns=self._moving_ns if self._all_seen else None,
        )


def _of_no_call(name: str, kernels: Sequence[Kernel]) -> AxisTime:
    busy_ns = int(covered(Interval(each.begin_ns, each.end_ns) for each in kernels))
    return AxisTime(axis=None, op=name, calls=len(kernels), bytes=None, busy_ns=busy_ns, moving_ns=None)


def _short(name: str) -> str:
    """A kernel's name without its arguments."""
    return name.removeprefix("void ").split("(")[0].split("<")[0].strip()
