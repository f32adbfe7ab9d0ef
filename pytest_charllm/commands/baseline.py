"""``pytest-charllm baseline accept | bridge | diff | list | show``."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from pytest_charllm.commands import BAD_INPUT, OK, REFUSED
from pytest_charllm.commands.accept import Accepted, accept, sample_of
from pytest_charllm.commands.asides import asides
from pytest_charllm.commands.bridge import bridge
from pytest_charllm.commands.diff import compared, medians, medians_of, provenance
from pytest_charllm.commands.upkeep import asked_for, duplicates, orphan
from pytest_charllm.errors import BadInput, BadRecord
from pytest_charllm.records import METRICS, Baseline, BaselineStack, Comparable, Stack
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import grid, pairs, section
from pytest_charllm.store.baselines import BaselineStore, Entry, read
from pytest_charllm.store.paths import shown
from pytest_charllm.store.run import RunDirectory


def run_accept(options: argparse.Namespace) -> int:
    """Exit code 1 when at least one scenario was refused; the others are on record all the same."""
    run = RunDirectory.open(options.root, options.run)
    results = accept(
        run,
        _store(options),
        accepted_by=_user(),
        because=options.because,
        only=options.only,
        label=options.label,
        commit=options.commit,
    )
    accepted = [result for result in results if isinstance(result, Accepted)]
    rows = [
        ("accepted", result.key, f"{result.launches} launches", result.note)
        if isinstance(result, Accepted)
        else ("refused", result.key, "", result.reason)
        for result in results
    ]
    print(grid(("", "scenario", "launches", "note"), rows))
    print(f"\nrun {run.id}: {len(accepted)} accepted, {len(results) - len(accepted)} refused")
    if accepted:
        folders = sorted({shown(result.path.parent) for result in accepted})
        hint = "" if run.info.machine.is_cpu else "; review with git diff, then commit"
        print(f"written to {', '.join(folders)}{hint}")
    return OK if len(accepted) == len(results) else REFUSED


def run_list(options: argparse.Namespace) -> int:
    """A file that cannot be trusted is named on stderr; the others are listed all the same."""
    wanted = _wanted(options.only)
    every = [entry for entry in _store(options).entries() if options.variant in (None, entry.variant)]
    entries = [entry for entry in every if wanted(entry.key)]
    rows, found, broken = [], [], 0
    for entry in entries:
        try:
            baseline = _read(entry)
            rows.append(_listed(entry, baseline))
            found.append((entry, baseline))
        except BadRecord as error:
            broken += 1
            print(f"pytest-charllm: {error}", file=sys.stderr)
    if rows:
        headers = ("hardware", "shape", "scenario", "tokens/s/GPU", "W", "Gate A", "stacks", "launches", "accepted")
        print(grid(headers, rows, headers[3:8]))
        asked = asked_for(options.root)
        orphans = [reason for entry, _ in found if (reason := orphan(entry, asked)) is not None]
        for title, lines in (("orphans", orphans), ("duplicates", list(duplicates(_store(options), found)))):
            if lines:
                print("\n" + section(title, "\n".join(lines)))
    elif not broken:
        matching = f" that match {options.only}" if options.only else ""
        print("no baselines" + (f" for {options.variant}" if options.variant else "") + matching)
    return BAD_INPUT if broken else OK


def run_show(options: argparse.Namespace) -> int:
    """Everything on record for one scenario: values and provenance of each stack, the reference first."""
    entries = _store(options).entries()
    found = [
        entry
        for entry in entries
        if fnmatchcase(entry.key, options.key) and options.variant in (None, entry.variant)
    ]  # fmt: skip
    if not found:
        known = sorted({entry.key for entry in entries if options.variant in (None, entry.variant)})
        near = difflib.get_close_matches(options.key, known, n=3)
        raise BadInput(
            f"no baseline {options.key}" + (f" for {options.variant}" if options.variant else "")
            + (f"; there are: {', '.join(near)}" if near else "; pytest-charllm baseline list names all")
        )  # fmt: skip
    print("\n\n\n".join(_shown(entry, _read(entry)) for entry in found))
    return OK


def run_diff(options: argparse.Namespace) -> int:
    """With a run, its launches against what is on record; without one, each reference against what it replaced."""
    told = _diff_run(options) if options.run else _diff_record(options)
    if not told:
        raise BadInput("nothing to compare" + (f" that matches {options.only}" if options.only else ""))
    print("\n\n\n".join(told))
    return OK


def run_bridge(options: argparse.Namespace) -> int:
    """Exit code 1 when at least one scenario could not be bridged; the others are written all the same."""
    run, store, refused = RunDirectory.open(options.root, options.run), _store(options), 0
    for key in filter(_wanted(options.only), run.scenario_keys()):
        try:
            done = bridge(run, store, key, options.because)
        except BadInput as error:
            refused += 1
            print(f"refused {error}", file=sys.stderr)
            continue
        table = compared(medians_of(done.old), medians_of(done.new), run.info.machine.variant)
        print(section(f"{key}: {shown(done.path)}", table))
    return REFUSED if refused else OK


def _diff_run(options: argparse.Namespace) -> list[str]:
    run, store, told = RunDirectory.open(options.root, options.run), _store(options), []
    machine = run.info.machine
    for key in filter(_wanted(options.only), run.scenario_keys()):
        launches, baseline = run.measurements(key), store.find(machine, key)
        if not launches:
            continue
        title = f"{key} on {machine.variant} {machine.shape}"
        if baseline is None:
            told.append(f"{title}\n  nothing on record: all of it is new")
            continue
        old, judgement, here = baseline.reference, run.judgement(key), run.comparable(key)
        verdict = "not judged" if judgement is None else f"{judgement.verdict}: {judgement.because}"
        unlike = baseline.comparable.difference(here) if here is not None else None
        new = [("new", f"run {run.id}: {verdict}"), *([("not comparable", unlike)] if unlike else [])]
        table = compared(medians_of(old), medians([sample_of(launch).values for launch in launches]), machine.variant)
        told.append(section(title, f"{provenance(old, launches[-1].stack, new)}\n\n{table}"))
    return told


def _diff_record(options: argparse.Namespace) -> list[str]:
    told, first, wanted = [], [], _wanted(options.only)
    for entry in _store(options).entries():
        if not wanted(entry.key):
            continue
        baseline = _read(entry)
        title = f"{entry.key} on {entry.variant} {entry.shape}"
        if len(baseline.stacks) < 2:
            first.append(title)
            continue
        old, new = baseline.stacks[-2:]
        whence = [("new", f"run {new.run_id}, accepted {new.accepted[:10]}: {new.because}")]
        table = compared(medians_of(old), medians_of(new), entry.variant)
        told.append(section(title, f"{provenance(old, new.stack, whence)}\n\n{table}"))
    if first:
        told.append(f"{first[0] if len(first) == 1 else f'{len(first)} scenarios'}: first on record, nothing before")
    return told


def _wanted(only: str | None) -> Callable[[str], bool]:
    return lambda key: only is None or only in key or fnmatchcase(key, only)


def _store(options: argparse.Namespace) -> BaselineStore:
    return BaselineStore.of(options.root, options.baselines)


def _read(entry: Entry) -> Baseline:
    baseline = read(entry.path)
    if baseline is None:
        raise BadRecord(f"{shown(entry.path)}: vanished while it was read; try again")
    return baseline


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _median(stack: BaselineStack, metric: str) -> float | None:
    numbers = [sample.values[metric] for sample in stack.samples if metric in sample.values]
    return statistics.median(numbers) if numbers else None


def _listed(entry: Entry, baseline: Baseline) -> tuple[str, ...]:
    reference = baseline.reference
    return (
        entry.variant,
        entry.shape,
        entry.key,
        value("throughput", _median(reference, "throughput")),
        value("mean_power", _median(reference, "mean_power")),
        value("cost_cpu", _median(reference, "cost_cpu")) if reference.speed_on_record else "",
        str(len(baseline.stacks)),
        str(len(reference.samples)),
        reference.accepted[:10] + (f" ({reference.label})" if reference.label else ""),
    )


def _shown(entry: Entry, baseline: Baseline) -> str:
    stacks = list(reversed(baseline.stacks))
    parts = [
        f"{entry.key} on {entry.variant} {entry.shape}\n{shown(entry.path)}",
        section("comparable with", pairs(_fields(baseline.comparable, skip=("variant", "shape")))),
    ]
    for stack, older in zip(stacks, [*stacks[1:], None], strict=True):
        parts += _stack(stack, older, is_reference=stack is stacks[0])
    return "\n\n".join(parts)


def _stack(stack: BaselineStack, older: BaselineStack | None, is_reference: bool) -> list[str]:
    title = f"accepted {stack.accepted} by {stack.accepted_by}" + (" (the reference)" if is_reference else "")
    provenance = [
        ("because", stack.because),
        ("label", stack.label),
        ("run", f"{stack.run_id} on {stack.host}"),
        ("commit", stack.commit or ""),
        ("speed", "" if stack.speed_on_record else "not on record"),
        ("stack", ", ".join(f"{part} {version}" for part, version in _fields(stack.stack))),
        ("changed", ", ".join(f"{part} {old} -> {new}" for part, old, new in _diff(older, stack))),
    ]
    metrics = [metric for metric in METRICS if any(metric in sample.values for sample in stack.samples)]
    rows = [
        (METRICS[metric].title, value(metric, _median(stack, metric)), *_values(stack, metric)) for metric in metrics
    ]
    headers = ("metric", "median", *(f"launch {n}" for n in range(1, len(stack.samples) + 1)))
    devices = sorted({uuid for sample in stack.samples for uuid in sample.device_uuids})
    body = pairs([(name, text) for name, text in [*provenance, ("devices", ", ".join(devices))] if text])
    return [
        section(title, "\n\n".join(part for part in (body, grid(headers, rows, headers[1:]), *asides(stack)) if part))
    ]


def _values(stack: BaselineStack, metric: str) -> Sequence[str]:
    return [value(metric, sample.values.get(metric)) for sample in stack.samples]


def _diff(older: BaselineStack | None, newer: BaselineStack) -> Sequence[tuple[str, str | None, str | None]]:
    return () if older is None else older.stack.diff(newer.stack)


def _fields(record: Comparable | Stack, skip: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Fields that say something, as text."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name not in skip}
    return [(name, _text(content)) for name, content in fields.items() if content not in (None, {})]


def _text(content: object) -> str:
    if isinstance(content, dict):
        return ", ".join(f"{name}: {meaning}" for name, meaning in content.items())
    return f"{content:g}" if isinstance(content, float) else str(content)
