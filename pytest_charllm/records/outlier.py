"""One rank that is worse than all others, or that all others wait for: the definitions that findings and diagnoses
share. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_charllm.records.metrics import TRACED_METRICS, Better

SKEW = 0.03
"""How much worse than the others' median a rank must be, and all others must be nearer to it than half of that."""

WAITS = 0.15
"""Share of a step by which the others' collectives must take longer. Beside computation most of that is no lost time:
between two healthy H200s under DDP it was 0.09, with one 5 % slower 0.24 to 0.35."""
EXPOSED = 0.03
"""The same where the collectives are exposed, so that time is lost."""


class Outlier(NamedTuple):
    """One rank that is worse than the median of the others by `by`, a ratio."""

    rank: int
    by: float


def outlier(values: Sequence[float], better: Better, skew: float = SKEW) -> Outlier | None:
    """The rank furthest behind, if it is so by `skew` and stands alone; None of fewer than two, or without a ratio."""
    if len(values) < 2 or min(values) <= 0:
        return None
    higher = better is Better.LOWER
    worst = (max if higher else min)(range(len(values)), key=values.__getitem__)
    others = [value for rank, value in enumerate(values) if rank != worst]
    middle = statistics.median(others)
    by = values[worst] / middle - 1
    loss = by if higher else -by
    spread = max(abs(value / middle - 1) for value in others)
    return Outlier(worst, by) if loss >= skew and spread < loss / 2 else None


class Late(NamedTuple):
    """The rank that arrives last at the collectives of a traced step. Seconds of communication, waiting included: of
    the median of the others, and its own; `by`: its compute time against theirs, a ratio."""

    rank: int
    others_s: float
    own_s: float
    by: float


def late(columns: Mapping[str, Sequence[float]]) -> Late | None:
    """Who the others wait for, from the parts of a traced step by rank, in seconds; None where nobody stands out.

    A collective takes longest on the rank that comes first and least on the one that comes last. Compute time does not
    tell by itself: kernels that wait hold multiprocessors, so that where both overlap the rank that waits computes
    longer. Seen on two H200s under DDP, +5 % on the rank that was not slowed.
    """
    parts = [columns.get(metric, ()) for metric in TRACED_METRICS]
    compute_s, communication_s, exposed_s, gaps_s = parts
    if len(communication_s) < 2 or len({len(part) for part in parts}) != 1:
        return None
    span_s = statistics.fmean(map(sum, zip(compute_s, exposed_s, gaps_s, strict=True)))
    rank = min(range(len(communication_s)), key=communication_s.__getitem__)
    behind = outlier(compute_s, Better.LOWER)
    stands_out = (
        _apart(communication_s, rank) >= WAITS * span_s
        or _apart(exposed_s, rank) >= EXPOSED * span_s
        or (behind is not None and behind.rank == rank)
    )
    if not stands_out:
        return None
    others_s, own_s = _others(communication_s, rank), communication_s[rank]
    return Late(rank, others_s, own_s, compute_s[rank] / _others(compute_s, rank) - 1)


def _apart(values: Sequence[float], rank: int) -> float:
    """How far below the median of the others; 0 where one of them is nearer to it than half of that."""
    apart = _others(values, rank) - values[rank]
    nearest = min(value for other, value in enumerate(values) if other != rank) - values[rank]
    return apart if nearest > apart / 2 else 0.0


def _others(values: Sequence[float], rank: int) -> float:
    return statistics.median([value for other, value in enumerate(values) if other != rank])
