"""How far the same code scatters, split by where it comes from: launch, run and card.

A value is its level plus what the cards, the run (the night, the restart, the room) and the launch add to it, each
with a standard deviation of its own. Everything is estimated from differences between pairs that share all but one of
these, by their median (Shamos 1976): no level has to be known, up to 29 % of the launches may be wild, and 86 % of the
efficiency of a standard deviation is kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from pytest_charllm.judge.tolerances import ENOUGH_SAMPLES, SIBLING_WEIGHT, SURPRISE_ALPHA
from pytest_charllm.records import Noise

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
PAIR_TO_SIGMA = 1.0483
"""The median absolute difference of two draws of a normal distribution times this is its standard deviation."""
EFFICIENCY = 0.86
"""Of that estimate, against a plain standard deviation of as many values."""

Cards = tuple[str, ...]


class Run(NamedTuple):
    """One run's launches of one metric, as ratios to the level of its segment (or in the metric's unit).

    Only runs of one `segment`, one software at one level, are compared with each other.
    """

    segment: int
    cards: Cards
    values: tuple[float, ...]


def robust_sigma(samples: Sequence[float], relative: bool) -> float:
    """Standard deviation of a launch from the median absolute deviation, as a ratio of the median where `relative`."""
    middle = statistics.median(samples)
    sigma = MAD_TO_SIGMA * statistics.median(abs(sample - middle) for sample in samples)
    return sigma / abs(middle) if relative else sigma


def estimate(runs: Sequence[Run], prior: float | None, siblings: Noise | None = None) -> Noise:
    """The split that the recorded runs show.

    A part with fewer than `ENOUGH_SAMPLES` launches, runs or cards to show it is its siblings', else `prior`, and
    named in `assumed`. One that is shown is shrunk toward the siblings' by `SIBLING_WEIGHT`. Launches too few to show
    it that are too far apart for what is assumed (`SURPRISE_ALPHA`) speak for themselves all the same. Runs of which
    neither record nor siblings show anything are assumed as far apart as launches at least: on H200s three scenarios
    that wait for their host had launches 2.6 to 3.0 % apart in their first night and were 9 to 15 % faster in the next.
    """
    siblings = siblings or Noise()
    launches = median_variance(statistics.median(len(run.values) for run in runs)) if runs else 1.0
    launch, launch_known = _of_launches([run.values for run in runs], prior, siblings.launch)
    same_cards: dict[tuple[int, Cards], list[float]] = {}
    for one in runs:
        same_cards.setdefault((one.segment, one.cards), []).append(statistics.median(one.values))
    run, run_known = _part(same_cards.values(), launches * (launch or 0.0) ** 2, prior, siblings.run)
    if not run_known and siblings.run is None and run is not None:
        run = max(run, launch or 0.0)
    segments: dict[int, list[float]] = {}
    for (segment, _), medians in same_cards.items():
        segments.setdefault(segment, []).append(statistics.median(medians))
    runs_a_card = statistics.median(len(medians) for medians in same_cards.values()) if same_cards else 1.0
    within = ((run or 0.0) ** 2 + launches * (launch or 0.0) ** 2) * median_variance(runs_a_card)
    card, card_known = _part(segments.values(), within, prior, siblings.card)
    known = {"launch": launch_known, "run": run_known, "card": card_known}
    return Noise(
        launch=launch, run=run, card=card, runs=len(runs), assumed=tuple(part for part in known if not known[part])
    )


def launches_alone(values: Sequence[float], prior: float | None) -> Noise:
    """The split where all that differs is the launch, from the launches of one run; `values` as ratios or in units."""
    launch, known = _of_launches([values], prior, None)
    return Noise(launch=launch, run=0.0, card=0.0, runs=1, assumed=() if known else ("launch",))


def launches_together(runs: Sequence[Run]) -> float | None:
    """The launch's standard deviation by all of them together, whatever metric each is of; None if they are too few."""
    return _part([run.values for run in runs], 0.0, None, None)[0]


def family(splits: Iterable[Mapping[str, Noise]]) -> dict[str, Noise]:
    """By metric, the median of what several scenarios of one machine show themselves. Assumed parts do not count."""
    shown: dict[str, list[Noise]] = {}
    for split in splits:
        for metric, noise in split.items():
            shown.setdefault(metric, []).append(noise)

    def median(several: Sequence[Noise], part: str) -> float | None:
        sigmas = [getattr(noise, part) for noise in several if part not in noise.assumed]
        known = [sigma for sigma in sigmas if sigma is not None]
        return statistics.median(known) if known else None

    return {
        metric: Noise(launch=median(several, "launch"), run=median(several, "run"), card=median(several, "card"))
        for metric, several in shown.items()
    }


def uncertainty(noise: Noise) -> float:
    """Relative standard deviation of an estimate from that many runs; 0 where it is no estimate but assumed."""
    return 0.0 if noise.provisional or noise.runs < 2 else 1 / math.sqrt(2 * EFFICIENCY * (noise.runs - 1))


def median_variance(n: float) -> float:
    """Variance of a median of n standard normal draws: ``pi / (2 (n + pi/2 - 1))``.

    Exact for 1, within 2 % for odd n, too large for even n.
    """
    return math.pi / (2 * (n + math.pi / 2 - 1))


def _of_launches(
    groups: Sequence[Sequence[float]], prior: float | None, siblings: float | None
) -> tuple[float | None, bool]:
    """`_part` of the launch. A step that its host holds up scatters by percents from the first night on: with what
    calm ones show, or the prior, its own launches would be regressions."""
    sigma, known = _part(groups, 0.0, prior, siblings)
    if known or not sigma or not _surprising(groups, sigma):
        return sigma, known
    return _spread([group for group in groups if len(group) > 1]), False


def _surprising(groups: Sequence[Sequence[float]], sigma: float) -> bool:
    """Whether launches are further apart than `SURPRISE_ALPHA` of those with a standard deviation of `sigma` are: by
    the chi-square quantile of their sum of squares, after Wilson and Hilferty (PNAS 1931)."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    if not freedom:
        return False
    squares = sum((value - statistics.fmean(group)) ** 2 for group in several for value in group)
    part = 2 / (9 * freedom)
    quantile = statistics.NormalDist().inv_cdf(1 - SURPRISE_ALPHA)
    return squares > float(freedom * sigma**2 * (1 - part + quantile * math.sqrt(part)) ** 3)


def _spread(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation from all pairs within groups of two values or more.

    Of few values Shamos' estimate is too large on average, by 6 % of 8 and 3 % of 20 (simulated): ``1 + 0.45 / n``, n
    being their freedom.
    """
    pairs = [abs(one - other) for group in groups for one, other in combinations(group, 2)]
    return PAIR_TO_SIGMA * statistics.median(pairs) / (1 + 0.45 / sum(len(group) - 1 for group in groups))


def _part(
    groups: Iterable[Sequence[float]], below: float, prior: float | None, siblings: float | None
) -> tuple[float | None, bool]:
    """One part's standard deviation, less the variance `below` that the parts below put into each value, and whether
    the record shows it."""
    groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < ENOUGH_SAMPLES - 1:
        return prior if siblings is None else siblings, False
    variance = max(0.0, _spread(groups) ** 2 - below)
    if siblings is not None:
        variance = (freedom * variance + SIBLING_WEIGHT * siblings**2) / (freedom + SIBLING_WEIGHT)
    return math.sqrt(variance), True
