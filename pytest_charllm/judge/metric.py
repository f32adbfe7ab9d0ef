"""One metric of one round held against what is on record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pytest_charllm.judge.noise import Band, band, would_have_seen
from pytest_charllm.judge.reference import Reference, reference_of
from pytest_charllm.judge.tolerances import BUSY, ENOUGH_SAMPLES, Tolerance
from pytest_charllm.judge.wording import amount, moved, width
from pytest_charllm.records import METRICS, BaselineSample, Better, Measurement, Metric, numbers_of, why_missing


class Call(Enum):
    """What one round says about one metric. A verdict needs more: what is required, and the confirmation."""

    WITHIN = "within"
    WORSE = "worse"
    BETTER = "better"
    NO_EVIDENCE = "no evidence"
    """Not measured, or never recorded."""
    UNJUDGED = "unjudged"
    """Measured, but not under conditions in which it may be held against the record."""
    UNRELIABLE = "unreliable"
    """The record scatters so much that the cap of the tolerance is passed."""


@dataclass(frozen=True)
class Outcome:
    """One metric of one round. `change` and `tolerance` are ratios where the metric is relative, else in its unit."""

    metric: str
    call: Call
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    tolerance: float | None = None
    would_have_seen: float | None = None
    reason: str = ""
    informational: bool = False

    @property
    def seen(self) -> str:
        """What this round saw, short: the change, or the value where an absolute limit decides."""
        if self.change is not None and self.tolerance is not None:
            return moved(self.metric, self.change)
        return "nothing" if self.value is None else amount(self.metric, self.value)


def judge_metric(
    metric: str,
    rule: Tolerance,
    recorded: Sequence[BaselineSample],
    launches: Sequence[Measurement],
    confirm_launches: int,
) -> Outcome:
    """The median of a round against the median of the matching recorded launches.

    A value that most launches lack counts as not measured. A change that even the noise of an unreliable record
    cannot explain is still called.
    """
    numbers = numbers_of(launches, metric)
    if not numbers:
        return Outcome(metric, Call.NO_EVIDENCE, reason=why_missing(launches, metric))
    if 2 * len(numbers) <= len(launches) and not rule.any_launch:
        reason = f"measured in {len(numbers)} of {len(launches)} launches"
        return Outcome(metric, Call.NO_EVIDENCE, reason=reason)
    value = statistics.median(numbers)
    outcome = _against_record(
        metric, rule, value, reference_of(metric, rule, recorded, launches), len(numbers), confirm_launches
    )
    if rule.informational and outcome.call is not Call.NO_EVIDENCE:
        return replace(outcome, call=Call.UNJUDGED, reason="informational", informational=True)
    return outcome if rule.worst is None else _against_limit(outcome, rule.worst)


def judge_wall(
    rule: Tolerance, recorded: Sequence[BaselineSample], launches: Sequence[Measurement], confirm_launches: int
) -> Outcome:
    """Gate B: only launches whose window had the cores to itself say anything about wall time."""
    ratios = [launch.number("busyness") for launch in launches]
    quiet = [launch for launch, ratio in zip(launches, ratios, strict=True) if ratio is not None and ratio < BUSY]
    if quiet:
        return judge_metric("cost_wall", rule, recorded, quiet, confirm_launches)
    known = [ratio for ratio in ratios if ratio is not None]
    reason = f"machine busy (wall/CPU {statistics.median(known):.2f})" if known else "busyness of the machine not known"
    return Outcome("cost_wall", Call.UNJUDGED, reason=reason)


def judge_power(power: Outcome, throughput: Outcome | None) -> Outcome:
    """Mean power read together with throughput, in the same round.

    More power for more tokens is no fault of its own (energy per token decides that), less for as many is a gain.
    More for as many, or less because a GPU stalls, stays worse.
    """
    if power.call is not Call.WORSE or power.change is None or throughput is None:
        return power
    if power.change > 0 and throughput.call is Call.BETTER:
        return replace(power, call=Call.WITHIN, reason="throughput rose as well")
    if power.change < 0 and throughput.call in (Call.WITHIN, Call.BETTER):
        return replace(power, call=Call.BETTER, reason="for as many tokens")
    return power


def _against_record(
    metric: str, rule: Tolerance, value: float, found: Reference, launches: int, confirm_launches: int
) -> Outcome:
    kind = METRICS[metric]
    if not found.values:
        call = Call.UNJUDGED if found.reason else Call.NO_EVIDENCE
        return Outcome(metric, call, value=value, reason=found.reason or "not on record")
    reference = statistics.median(found.values)
    if kind.relative and reference <= 0:
        return Outcome(metric, Call.NO_EVIDENCE, value=value, reason=f"{reference:g} on record is no reference")
    allowed = band(rule, found.values, kind.relative, found.floor)
    change = value / reference - 1 if kind.relative else value - reference
    call, reason = _call(kind, rule, change, value - reference, allowed)
    if call is Call.WITHIN and allowed.provisional:
        reason = f"noise provisional: {len(found.values)} of {ENOUGH_SAMPLES} launches on record"
    return Outcome(
        metric,
        call,
        value=value,
        reference=reference,
        change=change,
        tolerance=allowed.tolerance,
        would_have_seen=would_have_seen(allowed, launches, confirm_launches, len(found.values)),
        reason=reason,
    )


def _call(kind: Metric, rule: Tolerance, change: float, difference: float, allowed: Band) -> tuple[Call, str]:
    beyond = abs(change) > allowed.tolerance and abs(difference) >= rule.and_at_least
    worse = change > 0 if kind.better is Better.LOWER else change < 0
    if beyond and (worse or kind.better is Better.NEITHER):
        return Call.WORSE, ""
    if allowed.unreliable:
        return Call.UNRELIABLE, (
            f"unreliable: noise on record asks for a tolerance of {width(kind.id, allowed.tolerance)}, "
            f"at most {width(kind.id, rule.cap)} is allowed"
        )
    return (Call.BETTER if beyond else Call.WITHIN), ""


def _against_limit(outcome: Outcome, worst: float) -> Outcome:
    """The absolute limit goes before the record, and decides alone where nothing comparable is on record."""
    if outcome.value is None:
        return outcome
    higher = METRICS[outcome.metric].better is Better.HIGHER
    passed = outcome.value <= worst if higher else outcome.value > worst
    if passed:
        reason = f"limit {amount(outcome.metric, worst)}, whatever is on record"
        return replace(outcome, call=Call.WORSE, tolerance=None, reason=reason)
    if outcome.call in (Call.NO_EVIDENCE, Call.UNJUDGED):
        return replace(outcome, call=Call.WITHIN, reason=f"within the limit; {outcome.reason}")
    return outcome
