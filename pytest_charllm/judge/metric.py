"""One metric of one round held against what is on record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_charllm.judge.chances import Spread
from pytest_charllm.judge.noise import estimate, family, launches_alone, median_variance, robust_sigma, uncertainty
from pytest_charllm.judge.reference import Recorded, Reference, recorded_runs, reference_of, scaled_runs
from pytest_charllm.judge.tolerances import ENOUGH_SAMPLES, Match, Tolerance, noise_factor
from pytest_charllm.judge.wording import amount, moved, name, width
from pytest_charllm.judge.yardstick import Call, Yardstick
from pytest_charllm.records import METRICS, Baseline, Better, Measurement, Noise, why_missing


@dataclass(frozen=True, kw_only=True)
class Question:
    """How a round is to be judged: its launches in all, and what else is known of the noise.

    `pooled` False: only launches differ, as on a CPU, where the one accepted run is all there is.
    """

    budget: int
    factor: float = noise_factor()
    siblings: Mapping[str, Noise] = field(default_factory=dict)
    pooled: bool = True


@dataclass(frozen=True)
class Outcome:
    """One metric of one round. `change` and `tolerance` are ratios where the metric is relative, else in its unit."""

    metric: str
    call: Call
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    tolerance: float | None = None
    stick: Yardstick | None = None
    noise: Noise | None = None
    launches: int = 0
    foreign: bool = False
    card_ratio: float = 1.0
    reason: str = ""
    provisional: str = ""
    """What is still assumed of the noise and how much is on record; "" where the record shows it."""
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
    recorded: Sequence[Recorded],
    launches: Sequence[Measurement],
    question: Question,
) -> Outcome:
    """The median of a round against the level of the matching recorded runs.

    A value that most launches lack counts as not measured. A change that even the noise of an unreliable record
    cannot explain is still called.
    """
    numbers, unusable = _usable(metric, launches)
    if not numbers:
        return Outcome(metric, Call.NO_EVIDENCE, reason=unusable or why_missing(launches, metric))
    if 2 * len(numbers) <= len(launches) and not rule.any_launch:
        reason = f"measured in {len(numbers)} of {len(launches)} launches"
        return Outcome(metric, Call.NO_EVIDENCE, reason=f"{reason}; {unusable}" if unusable else reason)
    found = reference_of(metric, rule, recorded, launches)
    # What a launch lacks, no further launch brings back: the round is as long as its launches, not its values.
    outcome = _against_record(
        metric, rule, numbers, found, question, len(numbers) if len(launches) >= question.budget else question.budget
    )
    if rule.informational and outcome.call is not Call.NO_EVIDENCE:
        return replace(outcome, call=Call.UNJUDGED, reason="informational", informational=True)
    return outcome if rule.worst is None else _against_limit(outcome, rule.worst)


def judge_power(power: Outcome, throughput: Outcome | None) -> Outcome:
    """Mean power read together with throughput, in the same round: two-sided unless throughput rose.

    More tokens may take more power or less: energy per token decides whether that is a gain. Without more tokens more
    power is waste, and less is what a card draws that stalls, or whose sensor went wrong. Watts are joules a token
    times tokens/s: where tokens/s scatter too widely to be judged, watts may move with them, and as far from them as
    they scatter.
    """
    if power.call is Call.WORSE and throughput is not None and throughput.call is Call.UNRELIABLE:
        apart = abs((power.change or 0.0) - (throughput.change or 0.0))
        if apart <= (throughput.tolerance or 0.0):
            reason = f"moves with {name(throughput.metric)}, which is unreliable"
            return replace(power, call=Call.UNRELIABLE, reason=reason)
    if power.call is Call.WORSE and throughput is not None and throughput.call is Call.BETTER:
        return replace(power, call=Call.WITHIN, reason="throughput rose as well")
    return power


def yardstick(metric: str, rule: Tolerance, found: Reference, question: Question) -> tuple[Yardstick, Noise]:
    """What the reference and the noise on record come to, in numbers."""
    kind = METRICS[metric]
    if question.pooled:
        alone = rule.match is Match.CARD_AND_START
        noise = estimate(found.runs, rule.prior_sigma, None if alone else question.siblings.get(metric))
        spread = _spread(noise, found)
    else:
        noise = _of_launches(rule, found, kind.relative)
        launch = noise.launch
        spread = None if launch is None else Spread(launch * math.sqrt(median_variance(found.launches)), launch)
    stick = Yardstick(
        metric=kind, rule=rule, reference=found.level, floor=found.floor, spread=spread, factor=question.factor,
        uncertainty=uncertainty(noise) if question.pooled else 0.0, launches_count=question.pooled,
    )  # fmt: skip
    return stick, noise


def siblings_of(baselines: Iterable[Baseline], rules: Mapping[str, Tolerance]) -> dict[str, Noise]:
    """What the scenarios on record for one machine say together about the noise of each metric that has a prior."""
    metrics = [metric for metric, rule in rules.items() if rule.prior_sigma]
    return family(
        {metric: estimate(scaled_runs(metric, recorded), None) for metric in metrics}
        for recorded in map(recorded_runs, baselines)
    )


def one_run(metric: str, rule: Tolerance, others: Sequence[float], factor: float = noise_factor()) -> Yardstick:
    """For one launch held against others of its own run: only the launch differs, nothing is assumed."""
    kind, level = METRICS[metric], statistics.median(others)
    noise = launches_alone([value / level if kind.relative else value for value in others], None)
    launch = noise.launch
    spread = None if launch is None else Spread(launch * math.sqrt(median_variance(len(others))), launch)
    floor = rule.floor if rule.one_run_floor is None else rule.one_run_floor
    return Yardstick(metric=kind, rule=rule, reference=level, floor=floor, spread=spread, factor=factor)


def _usable(metric: str, launches: Sequence[Measurement]) -> tuple[list[float], str]:
    """The numbers that can be judged, and what is wrong with the first that cannot."""
    kind = METRICS[metric]
    numbers, wrong = [], ""
    for launch in launches:
        value = launch.values.get(metric)
        if value is None or value.value is None:
            continue
        if value.unit != kind.unit:
            wrong = wrong or f"{launch.launch_id}: {name(metric)} in {value.unit}, not in {kind.unit}"
        elif not math.isfinite(value.value) or (kind.relative and value.value <= 0):
            wrong = wrong or f"{launch.launch_id}: {name(metric)} of {value.value:g}: not a number, or a clock ran back"
        else:
            numbers.append(value.value)
    return numbers, wrong


def _against_record(
    metric: str, rule: Tolerance, numbers: Sequence[float], found: Reference, question: Question, budget: int
) -> Outcome:
    value = statistics.median(numbers)
    if not found.values:
        call = Call.NO_EVIDENCE if found.comparable else Call.UNJUDGED
        return Outcome(metric, call, value=value, launches=len(numbers), reason=found.reason or "not on record")
    stick, noise = yardstick(metric, rule, found, question)
    call, change, tolerance = stick.look(numbers, budget)
    provisional = _provisional(noise, found, question)
    return Outcome(
        metric,
        call,
        value=value,
        reference=stick.reference,
        change=change,
        tolerance=tolerance,
        stick=stick,
        noise=noise,
        launches=len(numbers),
        foreign=found.foreign > 0,
        card_ratio=found.card_ratio,
        reason=provisional if call is Call.WITHIN else _unreliable(call, tolerance, rule, metric),
        provisional=provisional,
    )


def _unreliable(call: Call, tolerance: float, rule: Tolerance, metric: str) -> str:
    if call is not Call.UNRELIABLE:
        return ""
    return (
        f"unreliable: noise on record asks for a tolerance of {width(metric, tolerance)}, "
        f"at most {width(metric, rule.cap)} is allowed"
    )


def _provisional(noise: Noise, found: Reference, question: Question) -> str:
    if not noise.provisional:
        return ""
    on_record = f"{noise.runs} of {ENOUGH_SAMPLES} runs" if question.pooled else _launches(found)
    return f"noise provisional: {on_record} on record"


def _launches(found: Reference) -> str:
    return f"{found.launches} of {ENOUGH_SAMPLES} launches"


def _spread(noise: Noise, found: Reference) -> Spread | None:
    """What unchanged code shows against this reference: a new run's own part, and the reference's uncertainty.

    The reference is a median of `R` runs of `n` launches each. Parts that are not known count as 0; without any
    knowledge of launches nothing is known.
    """
    if noise.launch is None:
        return None
    run, card = noise.run or 0.0, noise.card or 0.0
    launches = median_variance(statistics.median(len(values) for values in found.values))
    recorded = (run**2 + launches * noise.launch**2) * median_variance(len(found.values))
    cards = card**2 * (1 + median_variance(found.foreign)) if found.foreign else 0.0
    return Spread(math.sqrt(run**2 + recorded + cards), noise.launch)


def _of_launches(rule: Tolerance, found: Reference, relative: bool) -> Noise:
    """A CPU's launches, by the median absolute deviation of the accepted run's from `ENOUGH_SAMPLES` of them on."""
    samples = [value for launches in found.values for value in launches]
    known = len(samples) >= ENOUGH_SAMPLES
    launch = robust_sigma(samples, relative) if known else rule.prior_sigma
    return Noise(launch=launch, run=0.0, card=0.0, runs=len(found.values), assumed=() if known else ("launch",))


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
