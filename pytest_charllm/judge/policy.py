"""The decision: a scenario's launches held against its baseline, or the wish for more launches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_charllm.judge.busy import judge_cpu_time, judge_wall
from pytest_charllm.judge.collective import collective_required, collective_rules, noise_of_small
from pytest_charllm.judge.evidence import Against, Grounds, invalid, split
from pytest_charllm.judge.findings import judge_findings, record_findings
from pytest_charllm.judge.metric import Outcome, Question, judge_metric, judge_power
from pytest_charllm.judge.noise import estimate
from pytest_charllm.judge.reference import Recorded, scaled_runs, start_temperatures
from pytest_charllm.judge.rules import NO_CHANGE, Rules
from pytest_charllm.judge.script import script_required, script_rules
from pytest_charllm.judge.soak import REQUIRED, SOAK
from pytest_charllm.judge.tolerances import CPU_FACTOR, CPU_REQUIRED, Tolerance, noise_factor, rules_for
from pytest_charllm.judge.verdicts import green, listed, metric_verdict, red, undecided, without_baseline
from pytest_charllm.judge.wording import name
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import (
    METRICS,
    Baseline,
    Comparable,
    Judgement,
    Measurement,
    MetricVerdict,
    NeedMore,
    Noise,
    Tier,
    Verdict,
)
from pytest_charllm.scenario import Collective, Scenario, Script

UNCHECKED = "no strict check was made: the diagnostic pass gave no evidence"
RECORDED_ONLY = "not judged: no tolerance for it on a CPU, recorded"
ON_A_CPU = {
    "cost_wall": judge_wall, "throughput": judge_wall, "step_time": judge_wall, "step_cpu_time": judge_cpu_time,
}  # fmt: skip
"""What other work on the machine may falsify. Gate A is none of them: its calibrations share the steps' weather."""
PRIMARY = "throughput"
"""Once its noise is known, a GPU's rounds are looked at launch by launch."""


@dataclass(frozen=True)
class _Asked:
    """What is judged of a scenario, what a PASS needs evidence for, and whether strict checks are made of it.

    `noise`: what metrics of its own record say of each other's.
    """

    rules: Mapping[str, Tolerance]
    required: Sequence[str]
    checks: bool
    noise: Mapping[str, Noise] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """Tolerances from floor, noise and cap; a breach is confirmed once by fresh launches, never retried to green.

    The tolerances are in `judge.tolerances`. The tier says how many launches, and which metrics a PASS needs.
    `checks`: how many verdicts on single metrics the whole run will make. `siblings`: the noise that the scenarios on
    record for this machine show together, see `judge.metric.siblings_of`. `rules`: other ones, for recorded launches.
    """

    tier: Tier
    is_cpu: bool
    checks: int = 1
    siblings: Mapping[str, Noise] = field(default_factory=dict)
    rules: Rules = NO_CHANGE

    def first_launches(self, baseline: Baseline | None, comparable: Comparable, *, speed: bool = True) -> int:
        """How many launches to start with: one where each is looked at, else the whole first round."""
        against = Against.of(baseline, comparable, self.is_cpu)
        return self._first_look(against, self._wanted(baseline, against, speed))

    def decide(
        self,
        scenario: Scenario,
        baseline: Baseline | None,
        comparable: Comparable,
        rounds: Sequence[Sequence[Measurement]],
        aside: Measurement | None,
        *,
        speed: bool = True,
        first_launches: int | None = None,
    ) -> Judgement | NeedMore:
        """Judge what was measured so far. `rounds` are timed launches, the first round and its confirmation.

        `speed` False: on a CPU the strict checks alone decide, and `rounds` may be empty; on a GPU speed is always
        judged. A script has no strict checks, so on a CPU too its speed alone is judged. `first_launches` is a first
        round of exactly that many. Launches that failed are not passed in: they are failures of their own.
        """
        against = Against.of(baseline, comparable, self.is_cpu)
        asked = self._asked(
            scenario, comparable, [measurement for launches in rounds for measurement in launches], against.runs
        )
        budget = self._wanted(baseline, against, speed) if first_launches is None else first_launches
        look = self._first_look(against, budget) if first_launches is None else budget
        first, again = split(rounds, look)
        grounds = Grounds(scenario.key, baseline, (*first, *again), aside)
        if (reason := invalid(grounds.launches, aside)) is not None:
            return grounds.judgement(Verdict.INVALID, reason)
        strict_only = self.is_cpu and asked.checks and (not speed or not against.runs or not asked.rules)
        if len(first) < look and not (strict_only and grounds.failed):
            reason = f"{len(first)} of {look} launches of the first round"
            return NeedMore(launches=look - len(first), reason=reason)
        if strict_only:
            reason = against.reason if speed else "not judged: only its strict checks are"
            return self._by_checks(asked, grounds, reason if asked.rules else RECORDED_ONLY)
        before = self._outcomes(asked, against, first, budget)
        if open_ := _open(before, () if self.is_cpu else asked.required):
            if not again and len(first) < budget:
                return NeedMore(launches=1, reason=f"undecided after {len(first)} of {budget} launches: {_told(open_)}")
            before = self._outcomes(asked, against, first, len(first))
        breached = [outcome for outcome in before if outcome.call is Call.WORSE]
        after = self._outcomes(asked, against, again, self.tier.confirm_launches) if again else []
        missing = self.tier.confirm_launches - len(again)
        if breached and missing > 0:
            adaptive = self._adaptive(against)
            if not adaptive or not again or _open(after, [outcome.metric for outcome in breached]):
                launches = 1 if adaptive else missing
                return self._confirmation(breached, against.runs, first, launches, begins=not again)
        return self._by_metrics(asked, grounds, against, before, after, (budget, self.tier.confirm_launches))

    def _asked(
        self,
        scenario: Scenario,
        comparable: Comparable,
        launches: Sequence[Measurement],
        recorded: Sequence[Recorded],
    ) -> _Asked:
        rules = rules_for(comparable.variant, self.tier.name, self.is_cpu)
        required = CPU_REQUIRED if self.is_cpu else self.tier.required
        if isinstance(scenario.work, Collective):
            if self.is_cpu:
                return _Asked(self.rules.applied({}), (), checks=True)
            judged, needed = self.rules.applied(collective_rules(scenario.work)), collective_required(scenario.work)
            return _Asked(judged, needed, checks=True, noise=noise_of_small(scenario.work, recorded))
        if scenario.options.soak:
            return _Asked(self.rules.applied(rules | SOAK), (*required, *REQUIRED), self.tier.diagnostic)
        if not isinstance(scenario.work, Script):
            return _Asked(self.rules.applied(rules), required, self.tier.diagnostic)
        return _Asked(
            self.rules.applied(script_rules(rules, launches, self.is_cpu)),
            script_required(required, scenario.work, launches, self.is_cpu),
            checks=False,
        )

    def _wanted(self, baseline: Baseline | None, against: Against, speed: bool) -> int:
        if self.is_cpu and not speed:
            return 0
        return self.tier.launches if against.comparable and baseline is not None else self.tier.bootstrap_launches

    def _first_look(self, against: Against, budget: int) -> int:
        return min(1, budget) if self._adaptive(against) else budget

    def _adaptive(self, against: Against) -> bool:
        """Whether rounds may end early: only where the noise is this scenario's own, not assumed."""
        if self.is_cpu or not against.runs:
            return False
        return not estimate(scaled_runs(PRIMARY, against.runs), None).provisional

    def _outcomes(self, asked: _Asked, against: Against, launches: Sequence[Measurement], budget: int) -> list[Outcome]:
        """Every metric of one round in the order of its table. Power is read together with throughput."""
        factor = self.rules.factor or (CPU_FACTOR if self.is_cpu else noise_factor(self.checks))
        question = Question(
            budget=budget, factor=factor, siblings={**self.siblings, **asked.noise}, pooled=not self.is_cpu
        )
        outcomes: dict[str, Outcome] = {}
        for metric, rule in asked.rules.items():
            judge = ON_A_CPU.get(metric, judge_metric) if self.is_cpu else judge_metric
            outcomes[metric] = judge(metric, rule, against.runs, launches, question)
        if "mean_power" in outcomes:
            speed = outcomes.get("throughput") or outcomes["step_time"]
            outcomes["mean_power"] = judge_power(outcomes["mean_power"], speed)
        return list(outcomes.values())

    def _confirmation(
        self,
        breached: Sequence[Outcome],
        recorded: Sequence[Recorded],
        first: Sequence[Measurement],
        launches: int,
        begins: bool,
    ) -> NeedMore:
        """Fresh launches, from the temperature the recorded ones started at: on another card, as the first one did."""
        here_c = start_temperatures(first[:1])
        reference = [run for run in recorded if run.segment == recorded[-1].segment]
        recorded_c = start_temperatures(sample for run in reference for sample in run.samples)
        # Only before the first of them: those on record followed each other without a pause as well.
        cool = begins and not self.is_cpu
        return NeedMore(
            launches=launches,
            reason=f"to be confirmed: {_told(breached)}",
            confirms=True,
            cool_to_c={uuid: recorded_c.get(uuid, here_c[uuid]) for uuid in here_c} if cool else {},
        )

    def _by_checks(self, asked: _Asked, grounds: Grounds, reason: str) -> Judgement:
        rows = listed(asked.rules, grounds.launches, reason) + _others(grounds.launches, asked.rules)
        if grounds.failed:
            return grounds.judgement(Verdict.REGRESSION, red((), grounds.failed), rows)
        if not grounds.checks:
            return grounds.judgement(Verdict.INCONCLUSIVE, f"{UNCHECKED}; speed {reason}", rows)
        held = "1 strict check holds" if len(grounds.checks) == 1 else f"{len(grounds.checks)} strict checks hold"
        return grounds.judgement(Verdict.PASS, f"{held}; speed {reason}", rows)

    def _by_metrics(
        self,
        asked: _Asked,
        grounds: Grounds,
        against: Against,
        before: Sequence[Outcome],
        after: Sequence[Outcome],
        budgets: tuple[int, int],
    ) -> Judgement:
        confirmed = {outcome.metric: outcome for outcome in after}
        rows = [
            metric_verdict(first, confirmed.get(first.metric), first.metric in asked.required, budgets)
            for first in before
        ]
        if not against.runs:
            rows = [without_baseline(row) for row in rows]
        rows += _others(grounds.measured, [first.metric for first in before])
        findings = (*judge_findings(before, after), *record_findings(grounds.baseline, before, grounds.launches))
        if grounds.failed or any(row.verdict is Verdict.REGRESSION for row in rows):
            return grounds.judgement(Verdict.REGRESSION, red(rows, grounds.failed), rows, findings)
        if not against.runs:
            return grounds.judgement(Verdict.NO_BASELINE, against.reason.removeprefix("not judged: "), rows, findings)
        reason = undecided(rows, asked.required) or (UNCHECKED if asked.checks and not grounds.checks else None)
        if reason is not None:
            return grounds.judgement(Verdict.INCONCLUSIVE, reason, rows, findings)
        better = any(row.verdict is Verdict.IMPROVED for row in rows)
        return grounds.judgement(Verdict.IMPROVED if better else Verdict.PASS, green(rows), rows, findings)


def _open(outcomes: Sequence[Outcome], required: Collection[str]) -> list[Outcome]:
    """What more launches of the round may still decide: all that is undecided, and what is required and not seen."""
    return [
        outcome
        for outcome in outcomes
        if outcome.call is Call.UNDECIDED or (outcome.call is Call.NO_EVIDENCE and outcome.metric in required)
    ]


def _told(outcomes: Sequence[Outcome]) -> str:
    return "; ".join(f"{name(outcome.metric)} {outcome.seen}" for outcome in outcomes)


def _others(launches: Sequence[Measurement], told: Collection[str]) -> list[MetricVerdict]:
    """Everything measured that no tolerance is about."""
    return listed([metric for metric in METRICS if metric not in told], launches, "informational")
