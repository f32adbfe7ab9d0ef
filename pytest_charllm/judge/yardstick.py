"""What one metric is held against, and what a round of launches then says: numbers alone, no records.

A round is looked at after each of its launches (sequential stopping), and ends early in two ways:

- **Breach.** Beyond `EARLY_FACTOR` more standard deviations than the complete round needs (Haybittle 1971, Peto et al.
  1976). By the union bound, under any dependence of the looks, unchanged code then breaches with at most
  ``p(k) + sum of p(k + EARLY_FACTOR)`` over the early looks: 1e-3 + 2 x 2.2e-5 for three launches at k = 3.09.
- **Clear.** So far within the tolerance that the missing launches would carry it beyond with a chance of `CLEARED` at
  most, were it to stay where it is (stochastic curtailment, Lan, Simon and Halperin 1982). That cannot add a false
  alarm; it may miss what the complete round would have called in as many cases.

Improvements always take the complete round: they ask for a new baseline, which needs it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist
from typing import NamedTuple

from pytest_charllm.judge.chances import Round, Spread, false_alarm, would_have_seen
from pytest_charllm.judge.noise import median_variance
from pytest_charllm.judge.tolerances import CLEARED, EARLY_FACTOR, Tolerance
from pytest_charllm.records import Better, Metric

_Z_CLEARED = NormalDist().inv_cdf(1 - CLEARED)


class Call(Enum):
    """What one round says about one metric. A verdict needs more: what is required, and the confirmation."""

    WITHIN = "within"
    WORSE = "worse"
    BETTER = "better"
    UNDECIDED = "undecided"
    """Some launches of the round are still missing, and they could turn it."""
    NO_EVIDENCE = "no evidence"
    """Not measured, or never recorded."""
    UNJUDGED = "unjudged"
    """Measured, but not under conditions in which it may be held against the record."""
    UNRELIABLE = "unreliable"
    """The noise asks for a tolerance beyond the cap."""


class Look(NamedTuple):
    """One look at a round. `change` and `tolerance` are ratios where the metric is relative, else in its unit."""

    call: Call
    change: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """`reference`: the level on record. `spread`: of the change that unchanged code shows, None where it is not known.

    `uncertainty`: its own relative standard deviation, 0 where it is assumed. `factor`: how many standard deviations
    the tolerance holds. `launches_count` False: it is that of a single launch, however many a round has.
    """

    metric: Metric
    rule: Tolerance
    reference: float
    floor: float
    spread: Spread | None
    factor: float
    uncertainty: float = 0.0
    launches_count: bool = True

    def tolerance(self, launches: int) -> float:
        """``max(floor, k sigma)`` of a complete round of this many launches."""
        return self.floor if self.spread is None else max(self.floor, self.factor * self._sigma(launches))

    def unreliable(self, launches: int) -> bool:
        """Noise must not buy a pass: past the cap nothing can be called unchanged."""
        return self.tolerance(launches) > max(self.rule.cap, self.floor)

    def change(self, value: float) -> float:
        return value / self.reference - 1 if self.metric.relative else value - self.reference

    def look(self, numbers: Sequence[float], budget: int) -> Look:
        """The round so far, one number a launch, out of `budget` launches it may take."""
        value, launches = statistics.median(numbers), len(numbers)
        complete = launches >= budget or self.rule.any_launch
        change = self.change(value)
        tolerance = self.tolerance(launches if complete else budget)
        limit = tolerance if complete else max(tolerance, (self.factor + EARLY_FACTOR) * self._sigma(launches))
        enough = abs(value - self.reference) >= self.rule.and_at_least
        if abs(change) > limit and enough and self._worse(change):
            return Look(Call.WORSE, change, tolerance)
        if not complete and abs(change) > self._clear(tolerance, launches, budget):
            return Look(Call.UNDECIDED, change, tolerance)
        if self.unreliable(launches if complete else budget):
            return Look(Call.UNRELIABLE, change, tolerance)
        return Look(Call.BETTER if abs(change) > tolerance and enough else Call.WITHIN, change, tolerance)

    def rates(self, rounds: Sequence[int]) -> tuple[float | None, float | None]:
        """(what would have been seen, chance of a false alarm) when rounds of this many launches must all breach."""
        if self.spread is None:
            return None, None
        taken = [Round(self.tolerance(launches), launches) for launches in rounds]
        sides = 2 if self.metric.better is Better.NEITHER else 1
        return would_have_seen(taken, self.spread), sides * false_alarm(taken, self.spread, self.uncertainty)

    def _worse(self, change: float) -> bool:
        if self.metric.better is Better.NEITHER:
            return True
        return change > 0 if self.metric.better is Better.LOWER else change < 0

    def _sigma(self, launches: int) -> float:
        if self.spread is None:
            return self.floor / self.factor  # Whoever set the floor took it for what chance does not reach.
        return self.spread.of(launches) if self.launches_count else self.spread.launch

    def _clear(self, tolerance: float, launches: int, budget: int) -> float:
        """How far the round so far may be off and still be let go."""
        launch = self.spread.launch if self.spread is not None else self._sigma(launches)
        to_come = median_variance(launches) - median_variance(budget)
        return tolerance - _Z_CLEARED * launch * math.sqrt(to_come)
