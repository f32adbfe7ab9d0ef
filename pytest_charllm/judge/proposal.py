"""From launches of unchanged code: how they scatter, what tolerance that asks for, and what it would let be seen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pytest_charllm.judge.metric import Question, one_run, yardstick
from pytest_charllm.judge.noise import Run
from pytest_charllm.judge.reference import Cards, Reference, cards_of
from pytest_charllm.judge.tolerances import CHECK_ALPHA, CPU_FACTOR, Tolerance
from pytest_charllm.records import METRICS, Measurement, Noise, Tier, numbers_of


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One metric of one scenario. Numbers are ratios where the metric is relative, else in its unit.

    `tolerance`: what the noise alone asks for, of a complete round against these launches as a baseline. `sees`: the
    smallest change that is then found nine times in ten, confirmation included. `shipped`, `shipped_sees`: the same by
    the tolerance in force, whose floor may be wider. `one_run`: of a single launch against the others of its run; None
    below eight. All but `shipped` are None where nothing is known of the noise.
    """

    metric: str
    launches: int
    noise: Noise
    tolerance: float | None
    sees: float | None
    shipped: float
    shipped_sees: float | None
    one_run: float | None


def propose(
    runs: Sequence[Sequence[Measurement]],
    rules: Mapping[str, Tolerance],
    tier: Tier,
    is_cpu: bool,
    alpha: float = CHECK_ALPHA,
) -> list[Proposal]:
    """A proposal for every judged metric that the launches have. `runs` are one scenario's, unchanged throughout.

    `alpha` is the chance that a round of unchanged code breaches, one-sided; on a CPU `CPU_FACTOR` is what counts.
    """
    factor = CPU_FACTOR if is_cpu else NormalDist().inv_cdf(1 - alpha)
    rounds = (tier.launches, tier.confirm_launches)
    found = []
    for metric, rule in rules.items():
        values = [
            numbers for numbers in (_usable(metric, cards) for run in runs for cards in _by_cards(run)) if numbers[1]
        ]
        if not values:
            continue
        recorded = tuple(numbers for _, numbers in values)
        bare = Reference(recorded, tuple(_scaled(metric, values)), floor=0.0)
        question = Question(budget=tier.launches, factor=factor, pooled=not is_cpu)
        stick, noise = yardstick(metric, rule, bare, question)
        shipped, _ = yardstick(metric, rule, bare._replace(floor=rule.floor), question)
        longest = max(recorded, key=len)
        alone = one_run(metric, rule, longest, factor) if len(longest) > 1 else None
        spread = alone.spread if alone is not None else None
        found.append(
            Proposal(
                metric=metric,
                launches=sum(map(len, recorded)),
                noise=noise,
                tolerance=None if stick.spread is None else stick.tolerance(tier.launches),
                sees=stick.rates(rounds)[0],
                shipped=shipped.tolerance(tier.launches),
                shipped_sees=shipped.rates(rounds)[0],
                one_run=None if spread is None else factor * spread.of(1),
            )
        )
    return found


def _by_cards(run: Sequence[Measurement]) -> list[tuple[Cards, list[Measurement]]]:
    groups: dict[Cards, list[Measurement]] = {}
    for launch in run:
        groups.setdefault(cards_of(launch), []).append(launch)
    return list(groups.items())


def _usable(metric: str, group: tuple[Cards, list[Measurement]]) -> tuple[Cards, tuple[float, ...]]:
    cards, launches = group
    numbers = numbers_of(launches, metric)
    return cards, tuple(number for number in numbers if number > 0 or not METRICS[metric].relative)


def _scaled(metric: str, values: Sequence[tuple[Cards, tuple[float, ...]]]) -> list[Run]:
    """Around the common level, as the noise wants them."""
    level = statistics.median(statistics.median(numbers) for _, numbers in values)
    if METRICS[metric].relative:
        return [Run(0, cards, tuple(number / level for number in numbers)) for cards, numbers in values]
    return [Run(0, cards, tuple(number - level for number in numbers)) for cards, numbers in values]
