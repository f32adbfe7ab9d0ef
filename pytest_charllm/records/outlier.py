"""One rank that is worse than all others: the one definition that findings and diagnoses share. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_charllm.records.metrics import Better

SKEW = 0.03
"""How much worse than the others' median a rank must be, and all others must be nearer to it than half of that."""


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
