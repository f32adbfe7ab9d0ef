"""From the launches of a run to what is on record. The only writer of baselines, so all that it must refuse is here.

The newest accepted stack becomes the reference; older ones stay in the file as history.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_charllm.errors import BadInput, CharllmError
from pytest_charllm.judge.agreement import AGREEMENT_COV, too_far_apart
from pytest_charllm.judge.recordable import AGAIN, not_recordable
from pytest_charllm.measure.measurement import strict_checks
from pytest_charllm.records import (
    METRICS,
    Baseline,
    BaselineSample,
    BaselineStack,
    Judgement,
    Measurement,
    Pass,
    Status,
    Validity,
    Verdict,
    tier,
    timestamp,
)
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.records.run import RunStatus
from pytest_charllm.scenario import Collective, Script, Training
from pytest_charllm.store.baselines import BaselineStore, read
from pytest_charllm.store.run import RunDirectory

BOOTSTRAP = "bootstrap"
"""Label of the first baseline of its kind: nothing before it could be compared with."""
FAILED = (Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY)
ASIDE = (Pass.DIAGNOSTIC, Pass.TRACED)
"""Passes beside the timed one, which count what a step does."""
UNUSABLE = (Verdict.INVALID, Verdict.INFEASIBLE)


@dataclass(frozen=True)
class Accepted:
    key: str
    path: Path
    launches: int
    note: str = ""


@dataclass(frozen=True)
class Refused:
    key: str
    reason: str


class _Refusal(Exception):
    """Not an error of the command: one scenario is told why, the others go on."""


def accept(
    run: RunDirectory,
    store: BaselineStore,
    *,
    accepted_by: str,
    because: str = "",
    only: str | None = None,
    label: str = "",
    commit: str | None = None,
) -> list[Accepted | Refused]:
    """Put every timed scenario of the run on record that may be, and say of each other one why not.

    `only` is a pattern on keys (``gpt3*``) or a part of them. `because` is the reason that stays with the numbers; a
    regression needs one, and a GPU's launches that nothing could be decided by. `commit` is for a run outside of a git
    checkout, which could not know its own. Raises `BadInput` when the run is still running, holds nothing (that
    matches), or knows of another commit.
    """
    if run.status is RunStatus.RUNNING:
        raise BadInput(f"run {run.id} is still running; accept it when it has ended")
    if commit and run.info.commit not in (None, commit):
        raise BadInput(f"run {run.id} is of commit {run.info.commit}, not {commit}")
    keys = [key for key in run.scenario_keys() if _matches(key, only) and not _strict_only(run, key)]
    if not keys:
        raise BadInput(f"run {run.id} holds no timed scenario" + (f" that matches {only}" if only else ""))
    results: list[Accepted | Refused] = []
    for key in keys:
        try:
            results.append(_accept_one(run, store, key, accepted_by, because, label, run.info.commit or commit))
        except (_Refusal, CharllmError) as reason:
            results.append(Refused(key, str(reason)))
    return results


def _matches(key: str, only: str | None) -> bool:
    return only is None or only in key or fnmatchcase(key, only)


def _strict_only(run: RunDirectory, key: str) -> bool:
    """Judged, and rightly without a time that counts: there is nothing to put on record, nor to complain about."""
    untimed = not run.measurements(key) or (run.info.machine.is_cpu and isinstance(_work(run, key), Collective))
    return run.judgement(key) is not None and untimed and not any(_failed(run, key))


def _accept_one(
    run: RunDirectory,
    store: BaselineStore,
    key: str,
    accepted_by: str,
    because: str,
    label: str,
    commit: str | None,
) -> Accepted:
    machine = run.info.machine
    _refuse_run(run)
    for failure in _failed(run, key):
        raise _Refusal(failure)
    judgement, comparable = run.judgement(key), run.comparable(key)
    if judgement is None or comparable is None:
        raise _Refusal("not judged: the run was interrupted" if run.status is RunStatus.INTERRUPTED else "not judged")
    _refuse_judgement(judgement, because, _holding_now(run, key), machine.is_cpu)
    launches = _usable(run, key)
    gated = machine.is_cpu and not isinstance(_work(run, key), Script)
    disagreement = too_far_apart(launches, "cost_cpu", AGREEMENT_COV) if gated else ""
    existing = read(store.path(machine, key))
    incomparable = existing.comparable.difference(comparable) if existing is not None else None
    history = existing.stacks if existing is not None and incomparable is None else ()
    if any(stack.run_id == run.id for stack in history):
        raise _Refusal("already on record")
    if disagreement and history and history[-1].speed_on_record:
        raise _Refusal(f"{disagreement}; the speed on record stays: {AGAIN}")
    why = because or ("first on record" if existing is None else f"{judgement.verdict}: {judgement.because}")
    stack = BaselineStack(
        stack=launches[0].stack,
        run_id=run.id,
        accepted=timestamp(datetime.now(UTC)),
        accepted_by=accepted_by,
        because=f"{why}; {disagreement}" if disagreement else why,
        label=label or ("" if existing is not None else BOOTSTRAP),
        host=run.info.host,
        commit=commit,
        new_level=_is_new_level(judgement),
        speed_on_record=not disagreement,
        workload=_workload([*launches, *(each for aside in ASIDE for each in run.measurements(key, aside))]),
        traced=_traced(run.measurements(key, Pass.TRACED)),
        samples=tuple(sample_of(launch) for launch in launches),
    )
    path = store.write(Baseline(scenario_key=key, comparable=comparable, stacks=(*history, stack)), machine)
    notes = [f"a new file, the old one was not comparable: {incomparable}"] if incomparable else []
    notes += [f"speed is not on record: {disagreement}"] if disagreement else []
    return Accepted(key, path, len(launches), "; ".join(notes))


def _refuse_run(run: RunDirectory) -> None:
    """What bars everything in a run from ever going on record."""
    info = run.info
    if info.faults:
        raise _Refusal(f"injected: {', '.join(fault.name for fault in info.faults)}")
    if info.replayed:
        raise _Refusal("replayed: recorded launches do not measure this machine")
    if info.machine.simulated or info.machine.assumed:
        raise _Refusal("simulated: the machine was not really there")


def _failed(run: RunDirectory, key: str) -> Iterator[str]:
    for launch in run.launches(key):
        if launch.status in FAILED and launch.pass_ is not Pass.TRACED:  # that one only explains
            yield f"{launch.status.name}: {launch.first_cause}"


def _holding_now(run: RunDirectory, key: str) -> set[str]:
    """Strict checks that hold by this version's predictions, whatever an older one thought that night."""
    counted = [each for each in run.launches(key) if each.pass_ in ASIDE and each.status is Status.COMPLETED]
    again = [check for launch in counted for check in strict_checks(launch)]
    return {check.name for check in again} - {check.name for check in again if not check.ok}


def _refuse_judgement(judgement: Judgement, because: str, holding_now: Container[str], is_cpu: bool) -> None:
    broken = [check.name for check in judgement.checks if not check.ok and check.name not in holding_now]
    if broken:
        raise _Refusal(f"strict checks failed: {', '.join(broken)}")
    if judgement.verdict in UNUSABLE:
        raise _Refusal(f"{judgement.verdict}: {judgement.because}")
    if judgement.verdict is Verdict.REGRESSION and not because:
        raise _Refusal(f"REGRESSION: {judgement.because}; to make it the new normal, say why with --because")
    if judgement.verdict is Verdict.INCONCLUSIVE and (is_cpu or not because):
        # One night says little of how far nights are apart: if none but calm ones went on record, none ever would.
        remedy = "" if is_cpu else "; if nothing is wrong with these launches, say so with --because"
        raise _Refusal(f"INCONCLUSIVE: {judgement.because}{remedy}")


def _is_new_level(judgement: Judgement) -> bool:
    """Also where other metrics left it undecided: pooled with what was before, half of a gain could be lost unseen."""
    moved = (Verdict.IMPROVED, Verdict.REGRESSION)
    return judgement.verdict in moved or any(row.verdict in moved for row in judgement.metrics)


def _work(run: RunDirectory, key: str) -> Training | Script | Collective | None:
    """None where the launches are gone and only what was measured of them is left."""
    return next((launch.scenario.work for launch in run.launches(key)), None)


def _usable(run: RunDirectory, key: str) -> list[Measurement]:
    """The valid launches, if they may go on record."""
    measured = run.measurements(key)
    for flag in ("injected", "replayed", "simulated"):
        if any(getattr(measurement, flag) for measurement in measured):
            raise _Refusal(f"{flag}: {next(m.launch_id for m in measured if getattr(m, flag))}")
    is_cpu = run.info.machine.is_cpu
    why_not = not_recordable(measured, _work(run, key), tier(run.info.tier, is_cpu), is_cpu)
    if why_not:
        raise _Refusal(why_not)
    return [measurement for measurement in measured if measurement.validity is Validity.VALID]


def _workload(measured: Sequence[Measurement]) -> dict[str, str]:
    return {part: text for measurement in measured for part, text in measurement.workload.items()}


def _traced(measured: Sequence[Measurement]) -> dict[str, float]:
    """The parts of a traced step, of the last launch that has them."""
    known = [measurement for measurement in measured if measurement.validity is Validity.VALID]
    numbers = {metric: known[-1].number(metric) for metric in TRACED_METRICS} if known else {}
    return {metric: number for metric, number in numbers.items() if number is not None}


def sample_of(launch: Measurement) -> BaselineSample:
    """What goes on record of one launch: the metrics that it has."""
    numbers = {metric: launch.number(metric) for metric in METRICS}
    return BaselineSample(
        launch_id=launch.launch_id,
        started=launch.started,
        device_uuids=launch.device_uuids,
        values={metric: number for metric, number in numbers.items() if number is not None},
        start_temp_c=dict(sorted(launch.start_temp_c.items())),
        per_rank=launch.per_rank,
    )
