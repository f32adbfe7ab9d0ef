"""What the fixtures ask: launch, judge, and raise or skip as the outcome demands."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput, CharllmError, HarnessError
from pytest_charllm.plugin import opening, outcomes
from pytest_charllm.plugin.options import rerun_line
from pytest_charllm.plugin.outcomes import Outcome, Result
from pytest_charllm.plugin.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_charllm.campaign.campaign import Campaign
    from pytest_charllm.campaign.settings import Evidence
    from pytest_charllm.hardware import Machine
    from pytest_charllm.plugin.options import Options
    from pytest_charllm.plugin.waivers import Waiver
    from pytest_charllm.records import Judgement
    from pytest_charllm.records.run import Ended
    from pytest_charllm.report.case import Case
    from pytest_charllm.scenario import Scenario, Script


class Suite:
    """One session with items of ours."""

    def __init__(self, config: pytest.Config, options: Options, machine: Machine) -> None:
        self.options = options
        self.machine = machine
        self._results: dict[tuple[str, str], Result] = {}
        self.campaign: Campaign | None = None
        self.progress = ProgressLine(config)
        self._config = config
        self._waivers: tuple[Waiver, ...] = ()
        self._judged: set[str] = set()
        self._kept: dict[str, Ended] = {}
        self.about_s: float | None = None
        """How long the first rounds will take, as far as that is known; None of a replay."""

    @property
    def results(self) -> list[Result]:
        """What each test concluded about each scenario it asked for, in order."""
        return list(self._results.values())

    def open(self, items: Sequence[pytest.Item]) -> None:
        """Start the campaign over these items. Raises `BadInput` where it cannot start."""
        from pytest_charllm.plugin.waivers import read_waivers

        project, named = self.options.project, self.options.known
        usual = [project / "known.toml", project / "suites" / "known.toml"]
        self._waivers = read_waivers(usual if named is None else [named])
        self.campaign = opening.open_campaign(self._config, self.options, self.machine, items, self.progress)
        if self.options.replay is None:
            self.about_s = opening.about_s(self._config, self.options, self.machine, items)

    def close(self, *, interrupted: bool) -> None:
        self._keep()  # where the disk was full then and no longer is
        if self.campaign is not None:
            self.campaign.close(interrupted=interrupted)

    def feasible(self, item: pytest.Item, scenario: Scenario | Script | str, layout: str | None = None) -> Scenario:
        """The scenario, or its key read, or that of a script. Skips where a rule forbids it on this machine."""
        from pytest_charllm.hardware.catalogue import CATALOGUE
        from pytest_charllm.plugin.parametrize import check_script, scripted
        from pytest_charllm.scenario import Scenario, Script
        from pytest_charllm.scenario.feasibility import infeasible
        from pytest_charllm.scenario.key import parse_key

        if isinstance(scenario, Script):
            scenario = scripted(scenario, layout)
        elif layout is not None:
            raise BadInput(f"layout={layout!r} is for a Script; {scenario!r} has its own")
        elif isinstance(scenario, str):
            scenario = parse_key(scenario)
        elif not isinstance(scenario, Scenario):
            raise BadInput(f"a test measures a Scenario, a Script, or a key such as 'llama3-1b.mb2', not {scenario!r}")
        check_script(scenario)
        broken = infeasible(scenario, CATALOGUE[self.machine.variant], self.machine)
        if broken is not None:
            self.settle(item, scenario.key, Outcome.INFEASIBLE, str(broken))
            pytest.skip(str(broken))
        return scenario

    def evidence(self, item: pytest.Item, scenario: Scenario) -> Evidence:
        """The first round. Raises where our side failed or the measurement was disturbed."""
        with self._counted(item, scenario):
            evidence = self._running.evidence(scenario)
        settled = self._settled(evidence)
        if settled is not None and settled[0] in outcomes.ERRORS:
            self._conclude(item, evidence, *settled)
        return evidence

    def check(self, item: pytest.Item, evidence: Evidence) -> None:
        """Judge, and raise or skip unless it passes."""
        settled = self._settled(evidence)
        if settled is not None:
            self._conclude(item, evidence, *settled)
            return
        with self._counted(item, evidence.scenario):
            judgement = self._running.judge(evidence.scenario)
        self._judged.add(judgement.scenario_key)
        if evidence.failed is not None:  # a confirming launch: a crash is a crash whenever it comes
            self._conclude(item, evidence, *outcomes.of_failure(evidence.failed), judgement)
        else:
            self._conclude(item, evidence, Outcome[judgement.verdict.name], judgement.because, judgement)

    def value(self, item: pytest.Item, evidence: Evidence, metric: str) -> float:
        """Median over the first round's launches; raises or skips where there is none."""
        from pytest_charllm.records import metric_named, why_missing

        metric = metric_named(metric)
        settled = self._settled(evidence)
        value = evidence.median(metric)
        if settled is not None:
            self._conclude(item, evidence, *settled)
        if value is None:
            because = f"{metric}: {why_missing(evidence.measurements, metric)}"
            self._conclude(item, evidence, Outcome.INCONCLUSIVE, because)
            raise AssertionError("unreachable: INCONCLUSIVE skips")
        self._conclude(item, evidence, Outcome.MEASURED, "its test compares it by itself")
        return value

    def case(self, item: pytest.Item) -> Case | None:
        """What this test concluded last."""
        return next((result.case for result in reversed(self.results) if result.nodeid == item.nodeid), None)

    def settle(self, item: pytest.Item, key: str, outcome: Outcome, because: str) -> None:
        """Record an outcome that no launch stands behind."""
        from pytest_charllm.report.case import Case

        self._record(item, outcome, Case(key=key, verdict=outcome, because=because))

    def _settled(self, evidence: Evidence) -> tuple[Outcome, str] | None:
        """What needs no judge. A disturbance that came after the first round was the judge's to weigh."""
        if evidence.failed is None and evidence.scenario.key in self._judged:
            return None
        return outcomes.of_evidence(evidence)

    @property
    def _running(self) -> Campaign:
        assert self.campaign is not None, "opened before the first test"
        return self.campaign

    @contextmanager
    def _counted(self, item: pytest.Item, scenario: Scenario) -> Iterator[None]:
        """An error on our side has its row in the summary as well as its place among the errors."""
        try:
            yield
        except CharllmError as error:
            self.settle(item, scenario.key, Outcome.HARNESS, str(error))
            raise

    def _conclude(
        self, item: pytest.Item, evidence: Evidence, outcome: Outcome, because: str, judgement: Judgement | None = None
    ) -> None:
        """The one place where an outcome becomes an exception, a skip or a pass."""
        from pytest_charllm.report.case import Case

        lapsed: tuple[str, ...] = ()
        if outcome is Outcome.REGRESSION and judgement is not None and not self._config.option.runxfail:
            known, lapsed = self._waive(judgement)
            if known is not None:
                outcome, because = Outcome.WAIVED, known
        case = Case(
            key=evidence.scenario.key,
            verdict=outcome,
            because=because,
            judgement=judgement,
            measurements=evidence.measurements,
            launches=evidence.launches,
            not_recordable=self._not_recordable(evidence),
        )
        self._record(item, outcome, case)
        if outcome is Outcome.WAIVED:
            pytest.xfail(because)
        if outcome is Outcome.INCONCLUSIVE or (outcome is Outcome.NO_BASELINE and self.options.missing != "fail"):
            pytest.skip(f"{outcome}: {because}")
        if outcome in outcomes.EXCEPTION:
            raise outcomes.EXCEPTION[outcome]("\n".join([self._story(item, evidence, case), *lapsed]))

    def _not_recordable(self, evidence: Evidence) -> str:
        from pytest_charllm.judge.recordable import not_recordable

        tier = self._running.settings.tier
        return not_recordable(evidence.measurements, evidence.scenario.work, tier, self.machine.is_cpu)

    def _waive(self, judgement: Judgement) -> tuple[str | None, tuple[str, ...]]:
        from pytest_charllm.plugin.waivers import waive

        return waive(judgement, self._waivers, self.machine.variant, datetime.date.today())

    def _story(self, item: pytest.Item, evidence: Evidence, case: Case) -> str:
        from pytest_charllm.report.story import story

        first = case.failed or (evidence.launches[-1] if evidence.launches else None)
        return story(
            case,
            machine=self.machine,
            rerun=rerun_line(self._config, self.options, item.nodeid),
            folder=evidence.directories.get(first.id) if first is not None else None,
            repro=evidence.repro,
        )

    def _record(self, item: pytest.Item, outcome: Outcome, case: Case) -> None:
        from pytest_charllm.report.properties import properties

        place = (item.nodeid, case.key)
        if outcome is Outcome.MEASURED and place in self._results:
            return  # a value read beside a verdict, or a second value
        self._results[place] = Result(item.nodeid, outcome, case)
        self._keep()
        item.user_properties.append(("charllm", json.dumps(properties(case), allow_nan=False)))

    def _keep(self) -> None:
        """What the summary would say now, on record at once: this process may be killed before its end."""
        from pytest_charllm.records.run import Ended

        if self.campaign is None:
            return
        for case in outcomes.cases(self.results):
            ended = Ended(scenario_key=case.key, outcome=case.verdict, because=case.because)
            if self._kept.get(case.key) != ended:
                with suppress(HarnessError):  # a full disk, say, which may be the very thing that is being told
                    self.campaign.run.save_ended(ended)
                    self._kept[case.key] = ended
