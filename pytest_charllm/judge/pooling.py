"""All scenarios of a run at once: what moved together is one alarm with one name, even where each of them passed.

Siblings share the night, the node and the cards. So their changes are not so many independent witnesses: the median of
them is held against what the night does to all alike, which no number of siblings averages away.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from pytest_charllm.judge.noise import launches_alone, median_variance
from pytest_charllm.judge.reference import nights, recorded_runs
from pytest_charllm.judge.tolerances import POOLED_ALPHA, POOLED_FLOOR, POOLED_SIBLINGS
from pytest_charllm.judge.wording import moved, name, width
from pytest_charllm.records import METRICS, Baseline, Better, Judgement, MetricVerdict, Verdict

POOLED = ("throughput", "energy_per_token")
"""Metrics that a slow night moves in all scenarios alike."""

StackDiff = tuple[tuple[str, str | None, str | None], ...]


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Scenarios that moved together. `change` and `tolerance` are ratios, `change` being the median of theirs."""

    metric: str
    who: str
    """``all 30 scenarios``, or ``llama3-1b: 6 of 30 scenarios``."""
    keys: tuple[str, ...]
    change: float
    tolerance: float
    provisional: bool
    """Whether the spread of their common nights is assumed, not read from the record."""
    red: int
    """How many of them are a REGRESSION by themselves."""
    stack_diff: StackDiff
    with_it: tuple[str, ...] = ()
    """Other metrics that moved in the same scenarios, as ``energy per token +1.5 %``: one night is one alarm."""

    @property
    def text(self) -> str:
        """One line, with what they have in common that changed."""
        noise = ", noise provisional" if self.provisional else ""
        alone = f"{self.red} of them red by themselves" if self.red else "each within its own tolerance"
        beside = f", with it {' and '.join(self.with_it)}" if self.with_it else ""
        shared = "; ".join(f"{part} {recorded} -> {here}" for part, recorded, here in self.stack_diff)
        changed = f"all changed {shared}" if shared else "no software changed in all of them"
        return (
            f"{name(self.metric)} {moved(self.metric, self.change)} over {self.who} "
            f"(pooled tolerance {width(self.metric, self.tolerance)}{noise}){beside}, {alone}; {changed}"
        )


class _Sibling(NamedTuple):
    judgement: Judgement
    row: MetricVerdict
    change: float


def pooled(judgements: Sequence[Judgement], baselines: Mapping[str, Baseline] | None = None) -> tuple[Alarm, ...]:
    """The alarms of a run: one for all scenarios, else one a model that moved. A metric that moved in the same ones as
    one before it is told with that.

    `baselines` by scenario key: where runs on record hold most of the siblings, their common nights are the noise.
    """
    alarms: list[Alarm] = []
    for metric in POOLED:
        everyone = list(_siblings(judgements, metric))
        alarm = _alarm(metric, f"all {len(everyone)} scenarios", everyone, baselines or {}, groups=1)
        for found in [alarm] if alarm is not None else _by_model(metric, everyone, baselines or {}):
            _add(alarms, found)
    return tuple(alarms)


def _add(alarms: list[Alarm], found: Alarm) -> None:
    for index, alarm in enumerate(alarms):
        if set(found.keys) <= set(alarm.keys):
            told = f"{name(found.metric)} {moved(found.metric, found.change)}"
            told += f" over {found.who}" if found.who != alarm.who else ""
            alarms[index] = replace(alarm, with_it=(*alarm.with_it, told))
            return
    alarms.append(found)


def _siblings(judgements: Sequence[Judgement], metric: str) -> Iterator[_Sibling]:
    for judgement in judgements:
        for row in judgement.metrics:
            if row.metric == metric and row.change is not None and row.change > -1 and row.noise is not None:
                yield _Sibling(judgement, row, row.change)


def _by_model(metric: str, everyone: Sequence[_Sibling], baselines: Mapping[str, Baseline]) -> list[Alarm]:
    models: dict[str, list[_Sibling]] = {}
    for sibling in everyone:
        # A key starts with its model, full or reduced, or with the script's name.
        models.setdefault(sibling.judgement.scenario_key.partition(".")[0], []).append(sibling)
    if len(models) < 2:
        return []
    alarms = []
    for model, siblings in models.items():
        who = f"{model}: {len(siblings)} of {len(everyone)} scenarios"
        alarms.append(_alarm(metric, who, siblings, baselines, groups=len(models)))
    return [alarm for alarm in alarms if alarm is not None]


def _alarm(
    metric: str, who: str, siblings: Sequence[_Sibling], baselines: Mapping[str, Baseline], groups: int
) -> Alarm | None:
    if len(siblings) < POOLED_SIBLINGS:
        return None
    # The median, not the mean: one scenario that lost a third is its own alarm, not everybody's.
    change = math.expm1(statistics.median(math.log1p(sibling.change) for sibling in siblings))
    known = _shown(metric, [baselines.get(sibling.judgement.scenario_key) for sibling in siblings])
    sigma = _assumed(siblings) if known is None else known
    # Bonferroni, where each of several groups is looked at.
    tolerance = max(POOLED_FLOOR, NormalDist().inv_cdf(1 - POOLED_ALPHA / groups) * sigma)
    loss = -change if METRICS[metric].better is Better.HIGHER else change
    if loss <= tolerance:
        return None
    diffs = [sibling.judgement.stack_diff for sibling in siblings]
    return Alarm(
        metric=metric,
        who=who,
        keys=tuple(sibling.judgement.scenario_key for sibling in siblings),
        change=change,
        tolerance=tolerance,
        provisional=known is None,
        red=sum(sibling.row.verdict is Verdict.REGRESSION for sibling in siblings),
        stack_diff=tuple(part for part in diffs[0] if all(part in diff for diff in diffs)),
    )


def _shown(metric: str, baselines: Sequence[Baseline | None]) -> float | None:
    """Standard deviation of the pooled change, from the pooled values of earlier runs; None where they are too few.

    A run counts where at least half of the siblings are in it.
    """
    together: dict[str, list[float]] = {}
    for baseline in baselines:
        if baseline is not None:
            for run_id, value in nights(metric, recorded_runs(baseline)).items():
                together.setdefault(run_id, []).append(value)
    values = [statistics.median(each) for each in together.values() if 2 * len(each) >= len(baselines)]
    sigma = launches_alone(values, None).launch if values else None
    return None if sigma is None else sigma * math.sqrt(1 + median_variance(len(values)))


def _assumed(siblings: Sequence[_Sibling]) -> float:
    """The same, as if siblings shared all of the run and the cards, and nothing of the launches."""
    variances = []
    for sibling in siblings:
        noise = sibling.row.noise
        assert noise is not None
        runs = median_variance(max(1, noise.runs))
        launch = (noise.launch or 0.0) ** 2 * median_variance(max(1, sibling.row.launches)) * (1 + runs)
        foreign = any(finding.kind == "foreign-card" for finding in sibling.judgement.findings)
        cards = 2 * (noise.card or 0.0) ** 2 if foreign else 0.0
        variances.append((noise.run or 0.0) ** 2 * (1 + runs) + cards + launch * median_variance(len(siblings)))
    return math.sqrt(statistics.median(variances))
