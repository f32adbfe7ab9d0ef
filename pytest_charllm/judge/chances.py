"""Error rates of the rule: what it calls by luck alone, and which change it calls nine times in ten.

Breach and confirmation are two rounds of one run on the same cards, held against the same reference. So they are not
independent: what the run adds is in both. The chance that both breach is an integral over what they share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pytest_charllm.judge.noise import median_variance

POWER = 0.9
"""The share of real changes of the size `would_have_seen` names that are called."""
_REACH = 6.0
"""How far the integral over what the rounds share goes, in its standard deviations."""
_COARSE, _FINE = 1 / 4, 1 / 32
_BISECTIONS = 14


class Spread(NamedTuple):
    """Standard deviations of the change that a round shows of unchanged code, in the metric's own measure.

    `shared`: of what breach and confirmation have in common: the run, the cards, the reference. `launch`: of one
    launch.
    """

    shared: float
    launch: float

    def of(self, launches: int) -> float:
        """Of the median of a round."""
        return math.sqrt(self.shared**2 + self.launch**2 * median_variance(launches))


class Round(NamedTuple):
    """A round of `launches`, which breaches beyond `tolerance`."""

    tolerance: float
    launches: int


def called(change: float, rounds: Sequence[Round], spread: Spread) -> float:
    """The chance that every round breaches when the code really changed by this much for the worse."""
    own = [spread.launch * math.sqrt(median_variance(each.launches)) for each in rounds]
    if spread.shared == 0:
        return math.prod(_beyond(change - each.tolerance, sd) for each, sd in zip(rounds, own, strict=True))
    # The trapezoid rule is exact to many digits while its step is below the width of what it sums.
    step = min(_COARSE, max(_FINE, min(own) / spread.shared))
    half = round(_REACH / step)
    total = 0.0
    for node in range(-half, half + 1):
        u = node * step
        chance = math.exp(-u * u / 2)
        for each, sd in zip(rounds, own, strict=True):
            chance *= _beyond(change + spread.shared * u - each.tolerance, sd)
        total += chance
    return total * step / math.sqrt(2 * math.pi)


def false_alarm(rounds: Sequence[Round], spread: Spread, uncertainty: float) -> float:
    """The chance that unchanged code breaches in every round, one-sided, when the noise itself is an estimate.

    `uncertainty`: relative standard deviation of the estimate. The true noise is taken as log-normal around it, at the
    three nodes of Gauss and Hermite: a night louder than the record knows is where most false alarms come from.
    """
    step = math.sqrt(3) * uncertainty
    scales = ((math.exp(-step), 1 / 6), (1.0, 2 / 3), (math.exp(step), 1 / 6))
    return sum(
        weight * called(0.0, rounds, Spread(scale * spread.shared, scale * spread.launch)) for scale, weight in scales
    )


def would_have_seen(rounds: Sequence[Round], spread: Spread) -> float:
    """The smallest real change that is called with the chance `POWER`."""
    low = max(each.tolerance for each in rounds)
    if called(low, rounds, spread) >= POWER:
        return low
    high = low + 6 * max(spread.of(each.launches) for each in rounds)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if called(middle, rounds, spread) >= POWER else (middle, high)
    return high


def _beyond(distance: float, sd: float) -> float:
    """The chance that a normal variable with this mean is above 0."""
    if sd == 0:
        return 1.0 if distance > 0 else 0.5 if distance == 0 else 0.0
    return math.erfc(-distance / (sd * math.sqrt(2))) / 2
