"""Metrics of a CPU machine on which others may work too: what wall time and CPU time say then.

Wall time is the neighbours' as much as ours, so a busy window says nothing. CPU time is ours alone, but the same work
takes more of it beside others, on a core's other thread and in the caches, and never less: there it can be good, not
bad.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from pytest_charllm.judge.metric import Outcome, Question, judge_metric
from pytest_charllm.judge.reference import Recorded
from pytest_charllm.judge.tolerances import BUSY, Tolerance
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import BaselineSample, Measurement, numbers_of

LENGTHENS = ", which lengthens CPU time"


def judge_wall(
    metric: str, rule: Tolerance, recorded: Sequence[Recorded], launches: Sequence[Measurement], question: Question
) -> Outcome:
    """Wall time on a CPU, as in Gate B: only launches whose window had the cores to itself say anything about it,
    here and on record."""
    if quiet := _quiet(launches):
        return judge_metric(metric, rule, _quiet_runs(recorded), quiet, replace(question, budget=len(quiet)))
    return Outcome(metric, Call.NO_EVIDENCE, reason=_why_not_quiet(launches))


def judge_cpu_time(
    metric: str, rule: Tolerance, recorded: Sequence[Recorded], launches: Sequence[Measurement], question: Question
) -> Outcome:
    """CPU time with no calibration beside it, unlike Gate A: what is worse counts where the machine was quiet, and what
    is better where it was so on record.

    Held against quiet launches where any are on record.
    """
    quiet_runs = _quiet_runs(recorded)
    outcome = judge_metric(metric, rule, quiet_runs or recorded, launches, question)
    if outcome.call is Call.WORSE:
        sure = _worse_for_sure(metric, launches)
        worse = judge_metric(metric, rule, quiet_runs or recorded, sure, replace(question, budget=len(sure)))
        if worse.call is Call.WORSE:
            return worse
        return replace(outcome, call=Call.NO_EVIDENCE, reason=_why_not_quiet(launches, LENGTHENS))
    if outcome.call not in (Call.BETTER, Call.WITHIN) or quiet_runs or not recorded:
        return outcome
    ratio = statistics.median(sample.values["busyness"] for run in recorded for sample in run.samples)
    reason = f"on record from a busy machine (wall/CPU {ratio:.2f}){LENGTHENS}; put a quiet run on record in its place"
    # Nobody knows by how much that is too long, so a pass has no power to state.
    return replace(outcome, call=Call.WITHIN, stick=None, reason=reason)


def _quiet(launches: Sequence[Measurement]) -> list[Measurement]:
    ratios = [launch.number("busyness") for launch in launches]
    return [launch for launch, ratio in zip(launches, ratios, strict=True) if ratio is not None and ratio < BUSY]


def _worse_for_sure(metric: str, launches: Sequence[Measurement]) -> list[Measurement]:
    """Quiet launches whose median is that of all, were the busy ones the shortest of them: the longest are left out, as
    many as were busy. Empty where half of them or more were."""
    timed = [launch for launch in launches if launch.number(metric) is not None]
    quiet = sorted(_quiet(timed), key=lambda launch: launch.number(metric) or 0.0)
    return quiet[: max(0, 2 * len(quiet) - len(timed))]


def _quiet_runs(recorded: Sequence[Recorded]) -> list[Recorded]:
    runs = [run._replace(samples=tuple(filter(_was_quiet, run.samples))) for run in recorded]
    return [run for run in runs if run.samples]


def _was_quiet(sample: BaselineSample) -> bool:
    return sample.values.get("busyness", 0.0) < BUSY


def _why_not_quiet(launches: Sequence[Measurement], of_busy: str = "") -> str:
    """`of_busy` is what to add where any of them was busy, rather than not known to be quiet."""
    known = numbers_of(launches, "busyness")
    busy = [ratio for ratio in known if ratio >= BUSY]
    if not busy:
        return "busyness of the machine not known"
    where = "" if len(busy) == len(launches) else f" in {len(busy)} of {len(launches)} launches"
    return f"machine busy{where} (wall/CPU {statistics.median(busy):.2f}){of_busy}"
