"""What needs a hand among baseline files: those nothing asks for any more, and what is on record twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_charllm.errors import BadRecord, CharllmError
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.records import Baseline
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.baselines import BaselineStore, Entry
from pytest_charllm.store.paths import shown
from pytest_charllm.store.run import RunDirectory, run_ids


def asked_for(root: Path) -> dict[tuple[str, str], set[str]]:
    """(variant, shape) -> every key that some run kept under `root` asked for; of the runs that can be read, and were
    of a machine: a simulated or replayed one asks for whatever it is told to."""
    asked: dict[tuple[str, str], set[str]] = {}
    for run_id in run_ids(root):
        try:
            run = RunDirectory.open(root, run_id)
        except BadRecord:
            continue
        if run.info.machine.simulated or run.info.replayed:
            continue
        asked.setdefault((run.info.machine.variant, run.info.machine.shape), set()).update(run.scenario_keys())
    return asked


def orphan(entry: Entry, asked: dict[tuple[str, str], set[str]]) -> str | None:
    """Why no test can be judged by this file, or none was, in one line; None for one that is in use."""
    if entry.variant not in CATALOGUE:
        return f"{shown(entry.path)}: no hardware {entry.variant} in the catalogue"
    keys = asked.get((entry.variant, entry.shape))
    if keys is not None and entry.key in keys:
        return None
    try:
        parse_key(entry.key)
    except CharllmError as error:
        # A script's key says nothing of its file; whoever asks for it knows it.
        return f"{shown(entry.path)}: {error}" if keys is None else f"{shown(entry.path)}: {_unasked(entry)}; {error}"
    return None if keys is None else f"{shown(entry.path)}: {_unasked(entry)}"


def duplicates(store: BaselineStore, read: Sequence[tuple[Entry, Baseline]]) -> Iterator[str]:
    """Runs and launches that are in one file twice, and shipped files that a local one hides."""
    for entry, baseline in read:
        runs = Counter(stack.run_id for stack in baseline.stacks)
        yield from (f"{shown(entry.path)}: run {run} is on record {n} times" for run, n in runs.items() if n > 1)
        launches = Counter(
            (sample.started, sample.device_uuids, tuple(sample.values.items()))
            for run in {stack.run_id: stack for stack in baseline.stacks}.values()
            for sample in run.samples
        )
        yield from (
            f"{shown(entry.path)}: the launch of {started} is on record {n} times"
            for (started, _, _), n in launches.items()
            if n > 1
        )
        shipped = store.shipped / entry.variant / entry.shape / entry.path.name
        if shipped != entry.path and shipped.exists():
            yield f"{shown(entry.path)}: hides {shown(shipped)}"


def _unasked(entry: Entry) -> str:
    return f"no run on {entry.variant} {entry.shape} that is kept asked for it"
