"""The launch under the profiler: when it is made, what it may not do, and where its numbers go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.accept import accept
from pytest_charllm.records import Fault, Launch, Pass, Status, Verdict, tier
from pytest_charllm.records.breakdown import StepBreakdown
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import trainable_parameters

A = "llama3-1b.mb1"
NIGHTLY = tier("nightly", False)
MS = 1_000_000
STEP = StepBreakdown(
    span_ns=125 * MS, compute_ns=110 * MS, communication_ns=20 * MS, exposed_ns=10 * MS, idle_ns=5 * MS
)


@pytest.fixture
def tracing(lab: Any, monkeypatch: pytest.MonkeyPatch) -> list[StepBreakdown]:
    """What the traced launches of this test see, one step each."""
    steps = [STEP]
    launch = type(lab.launcher).run

    def run(launcher: Any, request: Any, on_progress: Any = None) -> Launch:
        made: Launch = launch(launcher, request, on_progress)
        if request.pass_ is not Pass.TRACED:
            return made
        return replace(made, ranks=tuple(replace(rank, breakdown=tuple(steps)) for rank in made.ranks))

    monkeypatch.setattr(type(lab.launcher), "run", run)
    return steps


def test_lost_overlap_is_named(lab: Any, make: SimpleNamespace, tracing: list[StepBreakdown]) -> None:
    """From a record with a trace to the cause in the story: a step whose communication nothing hides any more."""
    lab.put_on_record(A, tier=NIGHTLY)
    recorded = lab.store.find(make.h200(), A).reference.traced
    assert recorded == pytest.approx(dict(zip(TRACED_METRICS, (0.110, 0.020, 0.010, 0.005), strict=True)))
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    tracing[:] = [replace(STEP, span_ns=137 * MS, exposed_ns=22 * MS, communication_ns=22 * MS)]
    campaign = lab.open(A, tier=NIGHTLY, faults=(Fault(name="lost-overlap"),))
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.REGRESSION
    (said,) = judgement.diagnosis
    assert said.text == (
        "-9.1 % tokens/s; exposed communication +12.0 ms a step (10.0 ms on record), communication time +2.0 ms a step"
        " (20.0 ms on record): communication is exposed; no software changed"
    )
    assert lab.launcher.ids[-1] == f"{A}.traced-1", "after all that is timed"
    assert lab.launcher.requests[-1].faults, "what is to be explained is injected into it as well"
    rows = {row.metric: row.value for row in judgement.metrics}
    assert rows["exposed_communication"] == pytest.approx(0.022)
    assert campaign.run.measurements(A, Pass.TRACED)


def test_a_night_that_passes_traces_nothing(lab: Any, tracing: list[StepBreakdown]) -> None:
    """A launch more for each scenario of every night, for what nobody asks."""
    lab.put_on_record(A, tier=NIGHTLY)
    assert lab.open(A, tier=NIGHTLY).judge(parse_key(A)).verdict is Verdict.PASS
    assert not any("traced" in each for each in lab.launcher.ids)


def test_a_fault_that_passes_is_traced(lab: Any, make: SimpleNamespace, tracing: list[StepBreakdown]) -> None:
    """A rank slowed by 5 % passed beside a tolerance of 3.3 %, on cards with an excuse, and nobody named it."""
    lab.put_on_record(A, tier=NIGHTLY)
    campaign = lab.open(A, tier=NIGHTLY, faults=(Fault(name="slowdown", value=0.05),))
    assert campaign.judge(parse_key(A)).verdict is Verdict.PASS
    assert lab.launcher.ids[-1] == f"{A}.traced-1"
    assert lab.launcher.requests[-1].faults
    assert campaign.evidence(parse_key(A)).aside is not None
    lab.launcher = None
    again = lab.open(A, tier=NIGHTLY, replay=campaign.run.path / "launches")
    assert again.judge(parse_key(A)).verdict is Verdict.PASS
    assert again.evidence(parse_key(A)).aside is not None, "nor does its replay leave it out"


@pytest.mark.parametrize("how", [Status.CRASHED, Status.HARNESS, Status.HUNG])
def test_a_trace_that_fails_changes_no_verdict(lab: Any, make: SimpleNamespace, how: Status) -> None:
    """A profiler that crashes says nothing about the stack under test, and must not keep it off the record."""
    lab.launcher.endings["*.traced-1"] = make.Ending(how)
    campaign = lab.open(A, tier=NIGHTLY)
    judgement, evidence = campaign.judge(parse_key(A)), campaign.evidence(parse_key(A))
    assert judgement.verdict is Verdict.NO_BASELINE
    assert (evidence.failed, evidence.invalid, evidence.aside) == (None, None, None)
    assert any(note.startswith(f"{A}: no trace: ") for note in campaign.run.info.notes)
    campaign.close()
    (accepted,) = accept(campaign.run, lab.store, accepted_by="ada")
    assert lab.store.find(make.h200(), A).reference.traced == {}, accepted


def test_only_where_the_tier_has_one(lab: Any, make: SimpleNamespace) -> None:
    """A smoke run is to be short, and a simulated GPU trains on a CPU, which has nothing to trace."""
    smoke = lab.open(A)
    smoke.judge(parse_key(A))
    smoke.close()
    lab.open(A, tier=NIGHTLY, machine=replace(make.h200(), simulated=True)).judge(parse_key(A))
    assert not any("traced" in each for each in lab.launcher.ids)


def test_a_replay_traces_what_was_traced(lab: Any, make: SimpleNamespace, tracing: list[StepBreakdown]) -> None:
    """An older run has no such launch, which is no failure of its replay."""
    first = lab.open(A, tier=NIGHTLY)
    assert first.judge(parse_key(A)).verdict is Verdict.NO_BASELINE
    launches = first.run.path / "launches"
    lab.launcher = None
    again = lab.open(A, tier=NIGHTLY, replay=launches)
    assert again.judge(parse_key(A)).verdict is Verdict.NO_BASELINE
    assert again.evidence(parse_key(A)).aside is not None
    (launches / A / "traced-1" / "launch.json").unlink()
    older = lab.open(A, tier=NIGHTLY, replay=launches)
    older.judge(parse_key(A))
    assert (older.evidence(parse_key(A)).aside, older.run.info.notes) == (None, ())


def test_an_improvement_that_does_less_is_red(lab: Any, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that leaves out a tenth of its work is a tenth faster: without a count that was IMPROVED, on every GPU."""
    lab.put_on_record(A, tier=NIGHTLY)
    scenario = parse_key(A)
    launch = type(lab.launcher).run

    def run(launcher: Any, request: Any, on_progress: Any = None) -> Launch:
        made: Launch = launch(launcher, request, on_progress)
        if request.pass_ is not Pass.TRACED:
            return made
        flops = round(0.9 * hardware_flops_per_step(scenario))
        counted = replace(made.ranks[0], flops_per_step=flops, parameters=trainable_parameters(scenario))
        return replace(made, ranks=(counted,))

    monkeypatch.setattr(type(lab.launcher), "run", run)
    lab.launcher.endings["*"] = make.Ending(slowdown=-0.10)
    judgement = lab.open(A, tier=NIGHTLY).judge(scenario)
    assert judgement.verdict is Verdict.REGRESSION
    assert [check.name for check in judgement.checks if not check.ok] == ["FLOPs"]
    assert "FLOPs" in judgement.because
