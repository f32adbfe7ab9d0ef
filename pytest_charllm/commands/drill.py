"""One fault put into real launches, to see whether the judge sees it: against clean launches of the same minutes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pytest_charllm.campaign.campaign import Campaign
from pytest_charllm.campaign.runner import Launcher
from pytest_charllm.campaign.settings import Evidence, Planned, Settings
from pytest_charllm.commands.accept import sample_of
from pytest_charllm.errors import HarnessError
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.verdicts import line
from pytest_charllm.judge.wording import moved, name
from pytest_charllm.records import (
    Baseline,
    BaselineStack,
    Fault,
    Judgement,
    Launch,
    Status,
    Verdict,
    timestamp,
    why_missing,
)
from pytest_charllm.records.faults import (
    LEAK,
    LEAKED,
    LOST_OVERLAP,
    MEMORY,
    format_fault,
    parse_fault,
    step_of,
)
from pytest_charllm.scenario import Scenario, Sharding

SHOWN_BY = {LEAK: "growing"}
"""Faults that no metric of a short window shows, and the finding that does."""
ENDS_AS = {
    "crash": "exception", "hang": "hang", "oom": "out-of-memory", "early-exit": "early-exit", "nan": "not-finite",
}  # fmt: skip
"""Faults that end a launch, and the kind of its failure. No judge is needed to see them."""
MOVES = {MEMORY: "peak_memory", LOST_OVERLAP: "cost_wall"}
"""Faults that a metric of their own would show; the second on a CPU, whose CPU time knows no waiting."""


@dataclass(frozen=True)
class Drill:
    """`achieved` and `launches` are those of the launches that were made; `seen` is empty where it was not seen.

    `judged`: whether what would show it was judged at all. Where it was not, the gate says so and has missed nothing.
    """

    fault: str
    requested: str
    achieved: str
    seen: str
    told: str
    launches: int
    judged: bool = True

    @property
    def verdict(self) -> str:
        return "seen" if self.seen else "MISSED" if self.judged else "not judged"


def drills_for(scenario: Scenario) -> list[Fault]:
    """The set for a scenario: what its layout has no place for is left out."""
    texts = ["slowdown=0.10", "host-stall=0.10", "memory=0.25", "leak=100"]
    layout = scenario.layout
    if layout.world > 1:
        texts.append(f"slowdown=0.20,rank={layout.world - 1}")
    if layout.dp == layout.world > 1 and layout.sharding is Sharding.NONE and scenario.engine == "native":
        texts.append("lost-overlap")
    return [parse_fault(text) for text in texts]


def reference(scenario: Scenario, settings: Settings, launcher: Launcher | None = None) -> Baseline:
    """Clean launches, in the place of what would be on record. Raises `HarnessError` where one does not complete."""
    evidence, _ = _judged(scenario, replace(settings, launches=settings.tier.bootstrap_launches), launcher)
    launches = evidence.measurements
    stack = BaselineStack(
        stack=launches[0].stack, run_id="reference", accepted=timestamp(datetime.now(UTC)), accepted_by="inject",
        because="clean launches of this drill", host="", workload=launches[0].workload,
        samples=tuple(sample_of(launch) for launch in launches),
    )  # fmt: skip
    comparable = comparable_of(settings.machine, settings.tier.window, launches)
    return Baseline(scenario_key=scenario.key, comparable=comparable, stacks=(stack,))


def drill(
    scenario: Scenario, settings: Settings, fault: Fault, clean: Baseline, launcher: Launcher | None = None
) -> Drill:
    """Launch with the fault until the judge has decided, or the fault has ended it, as in a run.

    Raises `HarnessError` as `reference` does, also where something else than the fault ended a launch.
    """
    injected = replace(settings, faults=(fault,), find_baseline=lambda machine, key: clean)
    if fault.name in ENDS_AS:
        return _ended(scenario, injected, fault, launcher)
    evidence, judgement = _judged(scenario, injected, launcher)
    requested = LEAKED if fault.name == LEAK and fault.value is None else fault.value
    achieved = _achieved(evidence, fault)
    done = drilled(
        format_fault(fault), _amount(fault.name, requested), _amount(fault.name, achieved), judgement,
        SHOWN_BY.get(fault.name),
    )  # fmt: skip
    blind = "" if done.seen else _blind(fault, evidence, judgement)
    return replace(done, told=blind, judged=False) if blind else done


def drilled(fault: str, requested: str, achieved: str, judgement: Judgement, finding: str | None = None) -> Drill:
    """What the judge made of it. `finding` is the kind that shows a fault which no metric does."""
    seen = _seen(judgement, finding)
    cause = judgement.diagnosis[0].cause if judgement.diagnosis else ""
    told = cause if seen else _why_missed(judgement)
    return Drill(fault, requested, achieved, seen, told, judgement.launches)


def _ended(scenario: Scenario, settings: Settings, fault: Fault, launcher: Launcher | None) -> Drill:
    """Seen where the launch ended, and for the fault's own reason."""
    with _campaign(scenario, settings, launcher) as campaign:
        evidence = campaign.evidence(scenario)
    seen, told = "", "the launch completed"
    if (failed := evidence.failed) is not None and _is_by(fault, failed):
        seen, told = _ending(failed), failed.first_cause
    elif (trouble := _trouble(evidence)) is not None:
        raise HarnessError(f"{scenario.key}: {trouble}; see {campaign.run.path}")
    return Drill(format_fault(fault), f"step {step_of(fault)}", "", seen, told, len(evidence.launches))


def _is_by(fault: Fault, failed: Launch) -> bool:
    """Any error is an exception; the one that is raised on purpose says so."""
    failure = failed.failure
    if failure is None or failure.kind != ENDS_AS[fault.name]:
        return False
    return fault.name != "crash" or "injected crash" in failure.summary


def _ending(failed: Launch) -> str:
    """As the table of a run calls it; what it calls a crash may be many things."""
    kind = f" ({failed.failure.kind})" if failed.status is Status.CRASHED and failed.failure is not None else ""
    return f"{failed.status.name}{kind}"


def _judged(scenario: Scenario, settings: Settings, launcher: Launcher | None) -> tuple[Evidence, Judgement]:
    with _campaign(scenario, settings, launcher) as campaign:
        evidence = campaign.evidence(scenario)
        judgement = campaign.judge(scenario) if evidence.failed is None and evidence.invalid is None else None
    trouble = _trouble(evidence)
    if trouble is not None or judgement is None:
        raise HarnessError(f"{scenario.key}: {trouble}; see {campaign.run.path}")
    return evidence, judgement


@contextmanager
def _campaign(scenario: Scenario, settings: Settings, launcher: Launcher | None) -> Iterator[Campaign]:
    campaign = Campaign.create(settings, [Planned(scenario)], launcher)
    try:
        yield campaign
    except BaseException as error:
        campaign.close(interrupted=not isinstance(error, Exception))
        raise
    campaign.close()


def _trouble(evidence: Evidence) -> str | None:
    return evidence.invalid or (evidence.failed.first_cause if evidence.failed is not None else None)


def _seen(judgement: Judgement, finding: str | None) -> str:
    red = [row for row in judgement.metrics if row.verdict is Verdict.REGRESSION]
    if red:
        more = f" and {len(red) - 1} more" if len(red) > 1 else ""
        return f"{name(red[0].metric)} {moved(red[0].metric, red[0].change or 0.0)}{more}"
    return f"finding {finding}" if any(each.kind == finding for each in judgement.findings) else ""


def _blind(fault: Fault, evidence: Evidence, judgement: Judgement) -> str:
    """Why the metric that would show it says nothing; "" where it was judged."""
    metric = MOVES.get(fault.name, "")
    row = next((row for row in judgement.metrics if row.metric == metric), None)
    on_gpu = any(launch.device_uuids for launch in evidence.measurements)
    if not metric or (metric == "cost_wall" and on_gpu) or (row is not None and row.change is not None):
        return ""
    return f"{name(metric)}: {row.reason if row is not None else why_missing(evidence.measurements, metric)}"


def _why_missed(judgement: Judgement) -> str:
    held = [f"{name(row.metric)} {line(row)}" for row in judgement.metrics if row.change is not None and row.tolerance]
    return held[0] if held else judgement.because


def _achieved(evidence: Evidence, fault: Fault) -> float | None:
    reports = [report for launch in evidence.launches for report in launch.ranks]
    known = [a.achieved for report in reports for a in report.faults if a.name == fault.name and a.achieved is not None]
    return statistics.median(known) if known else None


def _amount(fault: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g} a step" if fault == LEAK else f"{100 * value:.1f} %"
