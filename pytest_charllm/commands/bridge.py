"""Across a new measuring version: an accepted run's launches, reduced again by the code at hand.

`MEASURING` is raised by hand when the same launch would give other numbers than before; baselines are then no longer
comparable. Where the launches of an accepted run are still there, the same work measured in both ways is the bridge:
its numbers replace the old ones, and what the new code alone moved is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.commands.accept import sample_of
from pytest_charllm.errors import BadInput
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import (
    MEASURING,
    Baseline,
    BaselineStack,
    Comparable,
    Launch,
    Measurement,
    Pass,
    Validity,
    tier,
)
from pytest_charllm.store.baselines import BaselineStore, read
from pytest_charllm.store.run import RunDirectory
from pytest_charllm.telemetry.reader import read_trace


@dataclass(frozen=True)
class Bridged:
    key: str
    path: Path
    old: BaselineStack
    new: BaselineStack


def bridge(run: RunDirectory, store: BaselineStore, key: str, because: str) -> Bridged:
    """Replace what is on record of one scenario by the same run's launches as they are measured now.

    Other runs of the file, whose launches are not here, stay in git. Raises `BadInput` where there is nothing to
    bridge, or more than the measuring version would change.
    """
    machine = run.info.machine
    baseline = read(store.path(machine, key))
    old = next((stack for stack in baseline.stacks if stack.run_id == run.id), None) if baseline is not None else None
    if baseline is None or old is None:
        raise BadInput(f"{key}: run {run.id} is not on record; a bridge needs a run that was accepted")
    if baseline.comparable.measuring == MEASURING:
        raise BadInput(f"{key}: on record by measuring version {MEASURING} already; there is nothing to bridge")
    measured = _measured(run, key, {sample.launch_id for sample in old.samples})
    here = comparable_of(machine, tier(run.info.tier, machine.is_cpu).window, measured)
    _refuse_more(key, baseline, here)
    note = f"{old.because}; bridged from measuring version {baseline.comparable.measuring} to {MEASURING}"
    new = replace(
        old,
        because=f"{note}: {because}" if because else note,
        workload={**old.workload, **measured[0].workload},
        samples=tuple(sample_of(each) for each in measured),
    )
    path = store.write(Baseline(scenario_key=key, comparable=here, stacks=(new,)), machine)
    return Bridged(key, path, old, new)


def _measured(run: RunDirectory, key: str, accepted: set[str]) -> list[Measurement]:
    launches = [each for each in run.launches(key) if each.pass_ is Pass.TIMED and each.id in accepted]
    if len(launches) < len(accepted):
        raise BadInput(f"{key}: {len(launches)} of the {len(accepted)} launches on record are left in run {run.id}")
    measured = [_measure(run, launch) for launch in launches]
    for measurement in measured:
        if measurement.validity is not Validity.VALID:
            raise BadInput(
                f"{measurement.launch_id}: {measurement.validity} as it is measured now: {measurement.reason}"
            )
    return measured


def _measure(run: RunDirectory, launch: Launch) -> Measurement:
    folder = run.path / "launches" / launch.scenario.key / launch.id.removeprefix(f"{launch.scenario.key}.")
    trace = read_trace(folder / launch.telemetry) if launch.telemetry is not None else None
    return measure(launch, trace, run.info.machine)


def _refuse_more(key: str, baseline: Baseline, here: Comparable) -> None:
    """The meaning of sensors and units is the measuring code's to change; all else is not."""
    expected = replace(baseline.comparable, measuring=MEASURING, semantics={}, units={})
    difference = expected.difference(here)
    if difference is not None:
        raise BadInput(f"{key}: more than the measuring version differs: {difference}")
