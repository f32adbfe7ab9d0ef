"""How much of a step's communication computation hides, from the intervals of a device's trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Interval(NamedTuple):
    """From `begin` to `end`, in any unit of time, of one kernel or collective."""

    begin: float
    end: float


def exposed(communication: Iterable[Interval], computation: Iterable[Interval]) -> float:
    """Time in which the device communicates and computes nothing: what the step would be shorter by without it.

    Intervals of either kind may overlap among themselves, as those of several streams do. Raises `ValueError` for one
    that ends before it begins.
    """
    total = 0.0
    busy = _union(computation)
    for begin, end in _union(communication):
        total += end - begin - sum(max(0.0, min(end, to) - max(begin, at)) for at, to in busy)
    return total


def overlap(communication: Iterable[Interval], computation: Iterable[Interval]) -> float | None:
    """Share of the communication that lies beside computation, 0 to 1; None where there is no communication."""
    communication = list(communication)
    whole = sum(end - begin for begin, end in _union(communication))
    return 1 - exposed(communication, computation) / whole if whole else None


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same instants as intervals that do not touch, in order."""
    joined: list[Interval] = []
    for each in sorted(intervals):
        if each.end < each.begin:
            raise ValueError(f"interval ends at {each.end}, before it begins at {each.begin}")
        if joined and each.begin <= joined[-1].end:
            joined[-1] = Interval(joined[-1].begin, max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined
