"""Where the time of a step goes on its device, from the intervals of a trace. Pure: every rank reduces its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_charllm.records.base import Record


class Interval(NamedTuple):
    """From `begin` to `end`, in any unit of time, of one kernel or collective."""

    begin: float
    end: float


class Kernel(NamedTuple):
    """What one stream of a device was busy with: a kernel, a copy or a fill."""

    stream: int
    name: str
    begin_ns: int
    end_ns: int


class StepBreakdown(Record, frozen=True, kw_only=True):
    """One step of one device, in nanoseconds. `compute_ns + exposed_ns + idle_ns == span_ns`.

    `communication_ns` is all of it, beside computation or not; `exposed_ns` the part that is not. `idle_ns`: nothing
    was on the device, so it waited for the host.
    """

    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    idle_ns: int


class AxisTime(Record, frozen=True, kw_only=True):
    """Calls of one kind on one parallel axis in one traced step of one rank, and how long their kernels ran.

    What the trace ties to no axis is told as well: kernels of communication by their name.
    """

    axis: str | None
    """As in `Collective`. None: of no call that the trace shows, or of a group that the engine does not know."""
    op: str
    """As in `Collective`; the name of kernels of no call."""
    calls: int
    """Or kernels, where they are of no call."""
    bytes: int | None
    """Of the full tensor of each call, summed. None: kernels of no call."""
    busy_ns: int | None
    """At least one of their kernels ran, waiting for other ranks included. None: of some call no kernel was seen."""
    moving_ns: int | None
    """Sum over calls, each by the rank on which it took least: the last one to come waits for nobody. None: not every
    call was seen on all ranks of its group."""


_COMMUNICATION = re.compile(r"^(void )?nccl|^Memcpy PtoP|\bc10d::")
"""Kernels of NCCL and RCCL, copies between GPUs, and torch's kernels over symmetric memory."""


def is_communication(name: str) -> bool:
    """Whether a kernel of that name moves data between GPUs, or waits to."""
    return _COMMUNICATION.search(name) is not None


def breakdown(kernels: Iterable[Kernel], begin_ns: int, end_ns: int) -> StepBreakdown:
    """The step between two instants. Of a kernel that reaches beyond them the part between them counts.

    Raises `ValueError` for an interval that ends before it begins.
    """
    _ordered(begin_ns, end_ns)
    of: dict[bool, list[Interval]] = {True: [], False: []}
    for kernel in kernels:
        _ordered(kernel.begin_ns, kernel.end_ns)
        begin, end = max(kernel.begin_ns, begin_ns), min(kernel.end_ns, end_ns)
        if begin < end:
            of[is_communication(kernel.name)].append(Interval(begin, end))
    communication, compute = of[True], of[False]
    compute_ns, exposed_ns = covered(compute), exposed(communication, compute)
    return StepBreakdown(
        span_ns=end_ns - begin_ns,
        compute_ns=int(compute_ns),
        communication_ns=int(covered(communication)),
        exposed_ns=int(exposed_ns),
        idle_ns=end_ns - begin_ns - int(compute_ns) - int(exposed_ns),
    )


def breakdowns(kernels: Sequence[Kernel], mark: str) -> tuple[StepBreakdown, ...]:
    """The steps between marks: kernels with `mark` in their names, one before the first step and one after each."""
    marks = sorted((kernel for kernel in kernels if mark in kernel.name), key=lambda kernel: kernel.begin_ns)
    others = [kernel for kernel in kernels if mark not in kernel.name]
    return tuple(breakdown(others, before.end_ns, after.begin_ns) for before, after in pairwise(marks))


def covered(intervals: Iterable[Interval]) -> float:
    """How much time lies in at least one of them. Raises `ValueError` for one that ends before it begins."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        _ordered(begin, end)
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def exposed(communication: Iterable[Interval], computation: Iterable[Interval]) -> float:
    """Time in which the device communicates and computes nothing: what the step would be shorter by without it.

    Intervals of either kind may overlap among themselves, as those of several streams do. Raises `ValueError` for one
    that ends before it begins.
    """
    computation = list(computation)
    return covered([*communication, *computation]) - covered(computation)


def _ordered(begin: float, end: float) -> None:
    if end < begin:
        raise ValueError(f"interval ends at {end}, before it begins at {begin}")
