"""The campaign: it sees every scenario of the run, and launches until the judge has decided each of them.

Neighbouring scenarios take turns launch by launch (A B C A B C), so that heat and hour of the day spread over all of
them instead of settling on one. What has been measured once serves every test that asks for the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property

from pytest_charllm.campaign.backtest import backtest
from pytest_charllm.campaign.cooling import cool_down
from pytest_charllm.campaign.lock import lock_devices
from pytest_charllm.campaign.runner import Launcher, Runner
from pytest_charllm.campaign.settings import Evidence, Planned, Settings, by_key
from pytest_charllm.errors import BadRecord
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.diagnosis.node import Suspect, suspects
from pytest_charllm.judge.metric import siblings_of
from pytest_charllm.judge.policy import Policy
from pytest_charllm.judge.pooling import Alarm, pooled
from pytest_charllm.judge.tolerances import rules_for
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.replay import ReplayLauncher, recorded
from pytest_charllm.records import Baseline, Judgement, Launch, NeedMore, Pass, Verdict
from pytest_charllm.records.tiers import window_of
from pytest_charllm.scenario import Collective, Scenario, Training
from pytest_charllm.scenario.script import refuse_namesake
from pytest_charllm.store.baselines import BaselineStore
from pytest_charllm.store.run import RunDirectory
from pytest_charllm.telemetry.keeper import Keeper

TRACED = (Verdict.REGRESSION, Verdict.IMPROVED, Verdict.NO_BASELINE)
"""What is followed by a launch under the profiler, in a tier that has one."""


class Campaign:
    """One run's launches, in order. Not thread-safe: launches never overlap, on purpose."""

    def __init__(self, settings: Settings, planned: Sequence[Planned], launcher: Launcher, run: RunDirectory) -> None:
        self.settings = settings
        self.run = run
        self._runner = Runner(settings, launcher, run)
        self._store = BaselineStore.of(settings.root, settings.shipped)
        self._planned = by_key(planned)
        self._evidence: dict[str, Evidence] = {}
        self._judgements: dict[str, Judgement] = {}
        self._held = ExitStack()
        """Until the end: the devices' locks, the sampler."""

    @classmethod
    def create(cls, settings: Settings, planned: Sequence[Planned], launcher: Launcher | None = None) -> Campaign:
        """A campaign with its own run directory.

        Raises `BadInput` when the directory cannot be written or a device is held by another campaign.
        """
        with ExitStack() as held:
            if settings.replay is None:
                held.enter_context(lock_devices(settings.machine))
            if launcher is None:
                replay = settings.replay
                launcher = TorchrunLauncher(held.enter_context(Keeper())) if replay is None else ReplayLauncher(replay)
            # Only now: a campaign that is refused must not become the latest run.
            run = RunDirectory.create(
                settings.root,
                machine=settings.machine,
                tier=settings.tier.name,
                arguments=settings.arguments,
                faults=settings.faults,
                seed=settings.seed,
                replayed=settings.replay is not None,
            )
            campaign = cls(settings, planned, launcher, run)
            campaign._held = held.pop_all()
        return campaign

    def close(self, *, interrupted: bool = False) -> None:
        """Mark the run as ended, keep what its scenarios say together, and let other campaigns have the devices."""
        with self._held:
            self.run.finish(interrupted=interrupted)
            for line in self.together():
                if line not in self.run.info.notes:
                    self.run.note(line)

    def evidence(self, scenario: Scenario) -> Evidence:
        """The first round of this scenario, launched together with its next neighbours in the plan if need be."""
        key = scenario.key
        if key not in self._evidence:
            refuse_namesake(scenario, self._planned.setdefault(key, Planned(scenario)).scenario)
            self._first_round(key)
        refuse_namesake(scenario, self._evidence[key].scenario)
        return self._evidence[key]

    def judge(self, scenario: Scenario) -> Judgement:
        """Let the policy decide, launching more for as long as it asks to. Failed launches are the caller's to see."""
        key = scenario.key
        if key not in self._judgements:
            judgement = self._decide(self.evidence(scenario))
            self.run.save_judgement(judgement)
            self._judgements[key] = judgement
        return self._judgements[key]

    @property
    def judgements(self) -> list[Judgement]:
        return list(self._judgements.values())

    def alarms(self) -> tuple[Alarm, ...]:
        """What moved in many scenarios at once, over everything judged so far."""
        recorded = {key: found for key in self._judgements if (found := self._readable(key)) is not None}
        return pooled(self.judgements, recorded)

    def backtest(self) -> list[str]:
        """What the rules of this replay say beside what was said when its launches were recorded."""
        assert self.settings.replay is not None, "only a replay has rules of its own"
        return backtest(self.judgements, self.settings.replay)

    def suspects(self) -> tuple[Suspect, ...]:
        """GPUs that several scenarios of the run call slow."""
        return suspects(self.judgements)

    def together(self) -> list[str]:
        """Alarms and suspects, a line each: what is nobody's own failure."""
        return [
            *(f"moved together: {alarm.text}" for alarm in self.alarms()),
            *(f"node suspect: {suspect.text}" for suspect in self.suspects()),
        ]

    def baseline(self, key: str) -> Baseline | None:
        """What is on record here. Raises `BadRecord` for a file that cannot be trusted."""
        if self.settings.find_baseline is not None:
            found = self.settings.find_baseline(self.settings.machine, key)
            if found is not None:
                return found
        return self._store.find(self.settings.machine, key)

    @cached_property
    def _policy(self) -> Policy:
        """Knows how many verdicts the run will make, and what all that is on record for this machine says of noise."""
        is_cpu = self.settings.machine.is_cpu
        shipped = rules_for(self.settings.machine.variant, self.settings.tier.name, is_cpu)
        rules = self.settings.rules.applied(shipped)
        recorded = [] if is_cpu else [found for key in self._planned if (found := self._readable(key)) is not None]
        by_luck = sum(bool(rule.prior_sigma) for rule in rules.values())
        return Policy(
            self.settings.tier, is_cpu, checks=len(self._planned) * by_luck, siblings=siblings_of(recorded, rules),
            rules=self.settings.rules,
        )  # fmt: skip

    def _readable(self, key: str) -> Baseline | None:
        try:
            return self.baseline(key)
        except BadRecord:
            return None  # Its own test will say what is wrong with it.

    def _first_round(self, key: str) -> None:
        """Launch this scenario and its next neighbours in turn, as often as each of them needs at first."""
        keys = list(self._planned)
        waiting = [other for other in keys[keys.index(key) :] if other not in self._evidence]
        wanted: dict[str, int] = {}
        for other in waiting[: self.settings.interleave]:
            try:
                wanted[other] = self._first_launches(self._planned[other])
            except BadRecord:
                if other == key:
                    raise
                # The neighbour's own test will say what is wrong with its baseline.
        group = [Evidence(self._planned[other]) for other in wanted]
        self._evidence.update((evidence.scenario.key, evidence) for evidence in group)
        if self.settings.tier.diagnostic:
            for evidence in group:
                if isinstance(evidence.scenario.work, Training):  # of a script there is nothing to compute from
                    evidence.aside = self._runner(evidence, Pass.DIAGNOSTIC, of=1)
        for evidence in group:
            evidence.rounds.append([])
        for turn in range(max(wanted.values())):
            for evidence in group:
                if turn < wanted[evidence.scenario.key]:
                    self._timed(evidence, of=wanted[evidence.scenario.key])

    def _first_launches(self, planned: Planned) -> int:
        # First, whoever says how often to launch: a file that cannot be trusted must not cost a launch.
        baseline = self.baseline(planned.scenario.key)
        asked = self._asked_launches(planned)
        if asked is not None:
            return asked
        # As far as that can be told before anything was measured: what the sensors mean is not known yet.
        here = comparable_of(self.settings.machine, window_of(self.settings.tier.window, planned.scenario))
        return self._policy.first_launches(baseline, here, speed=planned.speed)

    def _asked_launches(self, planned: Planned) -> int | None:
        """Launches of the first round, whatever is on record; None: what the tier says.

        On a CPU a collective is only checked and recorded, for which one launch is enough.
        """
        if self.settings.machine.is_cpu and isinstance(planned.scenario.work, Collective):
            return self.settings.launches or 1
        if not planned.speed and self.settings.machine.is_cpu:
            return 0
        return self.settings.launches

    def _timed(self, evidence: Evidence, of: int) -> None:
        if evidence.failed is not None or evidence.invalid is not None:
            return
        measurement = self._runner(evidence, Pass.TIMED, of)
        if measurement is not None:
            evidence.rounds[-1].append(measurement)

    def _decide(self, evidence: Evidence) -> Judgement:
        key = evidence.scenario.key
        window = window_of(self.settings.tier.window, evidence.scenario)
        comparable = comparable_of(self.settings.machine, window, evidence.measurements)
        self.run.save_comparable(key, comparable)
        baseline = self.baseline(key)
        traced = False
        while True:
            outcome = self._policy.decide(
                evidence.scenario, baseline, comparable, evidence.rounds, evidence.aside,
                speed=evidence.planned.speed, first_launches=self._asked_launches(evidence.planned),
            )  # fmt: skip
            if isinstance(outcome, Judgement):
                if not traced and self._wants_trace(evidence, outcome):
                    evidence.aside, traced = self._runner.trace(evidence), True
                    continue
                if outcome.verdict is Verdict.REGRESSION:
                    self._runner.write_repro(evidence, _witness(evidence))
                return outcome
            self._launch_more(evidence, outcome)
            if evidence.failed is not None or evidence.invalid is not None:
                return self._undecided(evidence, outcome)

    def _wants_trace(self, evidence: Evidence, judgement: Judgement) -> bool:
        """Whether something is to be explained or may go on record: a night that passes traces nothing. Who injects a
        fault asks what tells of it, and some only a trace tells: a slow rank whose share is within the tolerance."""
        settings, key = self.settings, evidence.scenario.key
        if not settings.tier.traced or settings.machine.simulated or not isinstance(evidence.scenario.work, Training):
            return False
        if settings.replay is not None:
            return bool(recorded(settings.replay, key, Pass.TRACED))
        return bool(settings.faults) or judgement.verdict in TRACED

    def _launch_more(self, evidence: Evidence, need: NeedMore) -> None:
        if self.settings.replay is None:
            still_warm = cool_down(need.cool_to_c, self.settings.telemetry_source)
            if still_warm is not None:
                self.run.note(f"{evidence.scenario.key}: confirmation without full cooling: {still_warm}")
        if need.confirms and len(evidence.rounds) < 2:
            evidence.rounds.append([])
        first = len(evidence.measurements)
        for _ in range(need.launches):
            self._timed(evidence, of=first + need.launches)

    def _undecided(self, evidence: Evidence, need: NeedMore) -> Judgement:
        which = "a confirming launch" if need.confirms else "a further launch"
        if evidence.failed is not None:
            why = f"{which} failed: {evidence.failed.first_cause}"
        else:
            why = f"{which} is not valid: {evidence.invalid}"
        return Judgement(
            scenario_key=evidence.scenario.key,
            verdict=Verdict.INCONCLUSIVE,
            because=f"{need.reason}; {why}",
            launches=len(evidence.measurements),
        )


def _witness(evidence: Evidence) -> Launch:
    """The launch that shows a regression: the one beside the timed ones where it breaks a strict check, else the last
    timed."""
    aside = evidence.aside
    if aside is not None and any(not check.ok for check in aside.checks):
        return next(launch for launch in evidence.launches if launch.id == aside.launch_id)
    return next(launch for launch in reversed(evidence.launches) if launch.pass_ is Pass.TIMED)
