"""A campaign whose outcomes are written down, so that the plugin is tested without starting anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_charllm.campaign.settings import CampaignProgress, Evidence, Planned
from pytest_charllm.errors import CharllmError
from pytest_charllm.hardware import Device, Machine
from pytest_charllm.plugin import opening, plan, suite  # noqa: F401  loaded here once, not by each inner pytest
from pytest_charllm.records import (
    TIERS,
    Check,
    Failure,
    Judgement,
    Launch,
    Measurement,
    MetricVerdict,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    Stack,
    Status,
    StepSeries,
    Value,
    Verdict,
)  # fmt: skip
from pytest_charllm.records.run import Ended, RunStatus
from pytest_charllm.report import properties, story, table  # noqa: F401
from pytest_charllm.scenario import Scenario

TIER = TIERS["smoke", False]

H200 = Machine(
    variant="h200-sxm",
    gpus_per_node=1,
    devices=(Device(uuid="GPU-1", name="NVIDIA H200", memory_bytes=150_754_820_096, power_limit_w=700.0),),
    driver="580.159.04",
)


def launch(scenario: Scenario, number: int, status: Status, step_s: float, pass_: Pass = Pass.TIMED) -> Launch:
    failed = status is not Status.COMPLETED
    report = RankReport(
        nonce="n", rank=0, world_size=1, host="h", pid=1, pass_=pass_, tokens_per_step=4096, parameters=10,
        device=RankDevice(kind="cuda", name="NVIDIA H200"), attention_backend="flash", software=Stack(),
        phases=Phases(), steps=StepSeries(wall_s=(step_s, step_s, step_s)),
    )  # fmt: skip
    return Launch(
        id=f"{scenario.key}.{pass_.value}-{number}", scenario=scenario, pass_=pass_, window=TIER.window, status=status,
        failure=Failure(kind="exception", summary="ValueError: broken weights on rank 1", rank=1, log_tail="the tail")
        if failed else None,
        ranks=() if failed else (report,),
    )  # fmt: skip


@dataclass(frozen=True)
class Script:
    """How one scenario ends."""

    verdict: Verdict = Verdict.PASS
    status: Status = Status.COMPLETED
    invalid: str | None = None
    raises: CharllmError | None = None
    """By `evidence`."""
    crash_in_confirmation: bool = False
    invalid_in_confirmation: bool = False
    steps_s: tuple[float, ...] = (0.1, 0.2)
    """Median step of each timed launch."""
    metrics: tuple[MetricVerdict, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass
class FakeCampaign:
    planned: Sequence[Planned]
    script: dict[str, Script]
    on_progress: Callable[[CampaignProgress], None]
    settings: object = field(default_factory=lambda: SimpleNamespace(tier=TIER))
    ended: list[Ended] = field(default_factory=list)
    run: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="run-1", path=Path("runs/run-1")))
    closed: list[bool] = field(default_factory=list)
    told_together: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    _evidence: dict[str, Evidence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run.save_ended, self.run.status = self.ended.append, RunStatus.RUNNING
        self.run.scenario_keys = lambda: self.asked

    def evidence(self, scenario: Scenario) -> Evidence:
        key, script = scenario.key, self._script(scenario.key)
        self.asked.append(key)
        if script.raises is not None:
            raise script.raises
        if key not in self._evidence:
            self._evidence[key] = self._measure(scenario, script)
        return self._evidence[key]

    def judge(self, scenario: Scenario) -> Judgement:
        script, evidence = self._script(scenario.key), self.evidence(scenario)
        if script.crash_in_confirmation:
            evidence.failed = launch(scenario, 9, Status.CRASHED, 0.1)
            evidence.launches.append(evidence.failed)
        if script.invalid_in_confirmation:
            evidence.invalid = "another process came"
        return Judgement(
            scenario_key=scenario.key, verdict=script.verdict, because=f"because {script.verdict}",
            metrics=script.metrics, checks=script.checks, launches=len(script.steps_s),
        )  # fmt: skip

    def together(self) -> list[str]:
        return list(self.told_together)

    def close(self, *, interrupted: bool = False) -> None:
        self.closed.append(interrupted)
        self.run.status = RunStatus.INTERRUPTED if interrupted else RunStatus.FINISHED

    def _script(self, key: str) -> Script:
        return self.script.get(key, self.script.get("*", Script()))

    def _measure(self, scenario: Scenario, script: Script) -> Evidence:
        harness = script.status is Status.HARNESS
        evidence = Evidence(Planned(scenario), invalid=script.invalid, harness=harness, rounds=[[]])
        for number, step_s in enumerate(script.steps_s, 1):
            for phase in ("start", "window", "window"):
                self.on_progress(CampaignProgress(scenario.key, Pass.TIMED, number, len(script.steps_s), phase, 1234.5))
            one = launch(scenario, number, script.status, step_s)
            evidence.launches.append(one)
            if script.status not in (Status.COMPLETED, Status.HARNESS):
                evidence.failed = one
                break
            values = {
                "step_time": Value(value=step_s, unit="s"),
                "throughput": Value(value=4096 / step_s if step_s > 0 else None, unit="tokens/s/GPU"),
                "mean_power": Value(value=None, unit="W", reason="sampler gap"),
            }
            evidence.rounds[0].append(
                Measurement(
                    launch_id=one.id, scenario_key=scenario.key, started="2026-11-29T12:00:00Z", stack=Stack(),
                    device_uuids=("GPU-1",), values=values,
                )
            )  # fmt: skip
        return evidence


@dataclass
class Inner:
    """A pytest of its own in a scratch directory, with the scripted campaign in place of the real one."""

    pytester: pytest.Pytester
    script: dict[str, Script] = field(default_factory=dict)
    campaigns: list[FakeCampaign] = field(default_factory=list)
    told_together: tuple[str, ...] = ()
    """Alarms and suspects of the campaign."""

    def suite(self, body: str) -> None:
        """A suite file; the usual imports are there."""
        head = "import pytest\nfrom pytest_charllm import Rows, scenarios\n\n"
        self.pytester.makepyfile(test_suite=head + body)

    def scripted(self, key: str = "*", **how: object) -> None:
        """`how` are the fields of `Script`."""
        self.script[key] = Script(**how)  # type: ignore[arg-type]

    def run(self, *arguments: str, plugins: tuple[str, ...] = ("charllm", "benchmark")) -> pytest.RunResult:
        chosen = [argument for plugin in plugins for argument in ("-p", plugin)]
        return self.pytester.runpytest_inprocess("-ra", *chosen, "-p", "no:cacheprovider", *arguments)

    @property
    def campaign(self) -> FakeCampaign:
        (campaign,) = self.campaigns
        return campaign


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """An inner pytest on an H200 where every scenario passes, unless `script` says otherwise."""
    made = Inner(pytester)

    def open_campaign(config, options, machine, items, on_progress):  # type: ignore[no-untyped-def]
        planned = [found.planned for item in items if (found := opening.collected(item))]
        campaign = FakeCampaign(planned, made.script, on_progress, told_together=made.told_together)
        made.campaigns.append(campaign)
        return campaign

    monkeypatch.setattr(opening, "open_campaign", open_campaign)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark keeps out of workers
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins have their own tests, and cost seconds
    (pytester.path / "conftest.py").write_text(
        "from pytest_charllm.hardware import Device, Machine\n"
        "def pytest_charllm_machine(config):\n"
        "    return Machine(variant='h200-sxm', gpus_per_node=1, driver='580.159.04',\n"
        "                   devices=(Device(uuid='GPU-1', name='NVIDIA H200', power_limit_w=700.0),))\n\n\n"
    )
    return made
