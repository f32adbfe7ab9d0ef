"""The decision: a scenario's launches held against its baseline, or the wish for more launches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_charllm.judge.evidence import Against, Grounds, invalid, split
from pytest_charllm.judge.findings import judge_findings
from pytest_charllm.judge.metric import Call, Outcome, judge_metric, judge_power, judge_wall
from pytest_charllm.judge.reference import start_temperatures
from pytest_charllm.judge.tolerances import CPU, CPU_REQUIRED, GPU
from pytest_charllm.judge.verdicts import green, listed, metric_verdict, red, undecided, without_baseline
from pytest_charllm.judge.wording import name
from pytest_charllm.records import (
    METRICS,
    Baseline,
    BaselineSample,
    Comparable,
    Judgement,
    Measurement,
    MetricVerdict,
    NeedMore,
    Tier,
    Verdict,
)
from pytest_charllm.scenario import Scenario

UNCHECKED = "no strict check was made: the diagnostic pass gave no evidence"


@dataclass(frozen=True)
class Policy:
    """Fixed tolerances with a floor and a cap; a breach is confirmed once by fresh launches, never retried to green.

    The tolerances are in `judge.tolerances`. The tier says how many launches, and which metrics a PASS needs.
    """

    tier: Tier
    is_cpu: bool

    def decide(
        self,
        scenario: Scenario,
        baseline: Baseline | None,
        comparable: Comparable,
        rounds: Sequence[Sequence[Measurement]],
        diagnostic: Measurement | None,
        *,
        speed: bool = True,
        first_launches: int | None = None,
    ) -> Judgement | NeedMore:
        """Judge what was measured so far. `rounds` are timed launches, the first round and what `NeedMore` added.

        `speed` False: on a CPU the strict checks alone decide, and `rounds` may be empty; on a GPU speed is always
        judged. `first_launches` overrides the tier's number. Launches that failed are not passed in: they are
        failures of their own.
        """
        against = Against.of(baseline, comparable, self.is_cpu)
        wanted = self._wanted(baseline, against, speed) if first_launches is None else first_launches
        first, again = split(rounds, wanted)
        grounds = Grounds(scenario.key, baseline, (*first, *again), diagnostic)
        if (reason := invalid(grounds.launches, diagnostic)) is not None:
            return grounds.judgement(Verdict.INVALID, reason)
        strict_only = self.is_cpu and (not speed or not against.samples)
        if len(first) < wanted and not (strict_only and grounds.failed):
            reason = f"{len(first)} of {wanted} launches of the first round"
            return NeedMore(launches=wanted - len(first), reason=reason)
        if strict_only:
            return self._by_checks(grounds, against.reason if speed else "not judged: only its strict checks are")
        before = self._outcomes(against.samples, first)
        breached = [outcome for outcome in before if outcome.call is Call.WORSE]
        if breached and len(again) < self.tier.confirm_launches:
            return self._confirmation(breached, against.samples, first, self.tier.confirm_launches - len(again))
        return self._by_metrics(grounds, against, before, self._outcomes(against.samples, again) if again else [])

    def _wanted(self, baseline: Baseline | None, against: Against, speed: bool) -> int:
        if self.is_cpu and not speed:
            return 0
        return self.tier.launches if against.comparable and baseline is not None else self.tier.bootstrap_launches

    def _outcomes(self, recorded: Sequence[BaselineSample], launches: Sequence[Measurement]) -> list[Outcome]:
        """Every metric of one round in the order of its table. Power is read together with throughput."""
        outcomes: dict[str, Outcome] = {}
        for metric, rule in (CPU if self.is_cpu else GPU).items():
            if metric == "cost_wall":
                outcomes[metric] = judge_wall(rule, recorded, launches, self.tier.confirm_launches)
            else:
                outcomes[metric] = judge_metric(metric, rule, recorded, launches, self.tier.confirm_launches)
        if "mean_power" in outcomes:
            outcomes["mean_power"] = judge_power(outcomes["mean_power"], outcomes["throughput"])
        return list(outcomes.values())

    def _confirmation(
        self,
        breached: Sequence[Outcome],
        recorded: Sequence[BaselineSample],
        first: Sequence[Measurement],
        launches: int,
    ) -> NeedMore:
        """Fresh launches, from the temperature the recorded ones started at: on another card, as the first one did."""
        told = "; ".join(f"{name(outcome.metric)} {outcome.seen}" for outcome in breached)
        here_c, recorded_c = start_temperatures(first[:1]), start_temperatures(recorded)
        cool_to_c = {} if self.is_cpu else {uuid: recorded_c.get(uuid, here_c[uuid]) for uuid in here_c}
        return NeedMore(launches=launches, reason=f"to be confirmed: {told}", cool_to_c=cool_to_c)

    def _by_checks(self, grounds: Grounds, reason: str) -> Judgement:
        rows = listed(CPU, grounds.launches, reason) + _others(grounds.launches, CPU)
        if grounds.failed:
            return grounds.judgement(Verdict.REGRESSION, red((), grounds.failed), rows)
        if not grounds.checks:
            return grounds.judgement(Verdict.INCONCLUSIVE, f"{UNCHECKED}; speed {reason}", rows)
        return grounds.judgement(Verdict.PASS, f"{len(grounds.checks)} strict checks hold; speed {reason}", rows)

    def _by_metrics(
        self, grounds: Grounds, against: Against, before: Sequence[Outcome], after: Sequence[Outcome]
    ) -> Judgement:
        required = CPU_REQUIRED if self.is_cpu else self.tier.required
        confirmed = {outcome.metric: outcome for outcome in after}
        rows = [metric_verdict(first, confirmed.get(first.metric), first.metric in required) for first in before]
        if not against.samples:
            rows = [without_baseline(row) for row in rows]
        rows += _others(grounds.launches, [first.metric for first in before])
        findings = judge_findings(before, after)
        if grounds.failed or any(row.verdict is Verdict.REGRESSION for row in rows):
            return grounds.judgement(Verdict.REGRESSION, red(rows, grounds.failed), rows, findings)
        if not against.samples:
            return grounds.judgement(Verdict.NO_BASELINE, against.reason, rows, findings)
        reason = undecided(rows, required) or (UNCHECKED if self.tier.diagnostic and not grounds.checks else None)
        if reason is not None:
            return grounds.judgement(Verdict.INCONCLUSIVE, reason, rows, findings)
        better = any(row.verdict is Verdict.IMPROVED for row in rows)
        return grounds.judgement(Verdict.IMPROVED if better else Verdict.PASS, green(rows), rows, findings)


def _others(launches: Sequence[Measurement], told: Collection[str]) -> list[MetricVerdict]:
    """Everything measured that no tolerance is about."""
    return listed([metric for metric in METRICS if metric not in told], launches, "informational")
