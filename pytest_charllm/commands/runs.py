"""``pytest-charllm runs list | show | prune``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from pytest_charllm.commands import BAD_INPUT, OK
from pytest_charllm.errors import BadRecord
from pytest_charllm.judge.recordable import not_recordable
from pytest_charllm.records import Launch, Pass, Status, tier
from pytest_charllm.records.run import Ended, RunStatus
from pytest_charllm.report.case import Case
from pytest_charllm.report.numbers import size
from pytest_charllm.report.table import summary
from pytest_charllm.report.text import grid, pairs
from pytest_charllm.store.baselines import BaselineStore
from pytest_charllm.store.paths import shown
from pytest_charllm.store.prune import prune, size_bytes
from pytest_charllm.store.run import RunDirectory, run_ids, strays, why_lost


def run_list(options: argparse.Namespace) -> int:
    """Every run, newest last. One that cannot be read is named on stderr; the others are listed all the same."""
    rows, broken = [], 0
    for run_id in run_ids(options.root):
        try:
            rows.append(_listed(RunDirectory.open(options.root, run_id)))
        except BadRecord as error:
            broken += 1
            print(f"pytest-charllm: {error}", file=sys.stderr)
    broken += _tell_strays(options)
    headers = ("run", "machine", "tier", "status", "verdicts", "injected", "disk")
    if rows or not broken:
        print(grid(headers, rows, ("disk",)) or f"no runs in {shown(options.root / 'runs')}")
    return BAD_INPUT if broken else OK


def run_show(options: argparse.Namespace) -> int:
    """What was asked for, how it ended, and the table that stood at its end."""
    run = RunDirectory.open(options.root, options.run)
    info = run.info
    head = [
        ("run", f"{run.id} ({run.status})"),
        ("folder", shown(run.path)),
        ("machine", f"{info.machine.variant} {info.machine.shape} on {info.host}"),
        ("tier", info.tier),
        ("command", info.arguments),
        ("commit", info.commit or ""),
        ("started", info.started),
        ("finished", info.finished or ""),
        ("seed", str(info.seed)),
        *(("note", note) for note in info.notes),
    ]
    print(pairs([(name, text) for name, text in head if text]))
    ended = run.ended()
    table = summary([_case(run, key, ended.get(key)) for key in sorted({*run.scenario_keys(), *ended})])
    if table:
        print(f"\n{table}")
    return OK


def run_prune(options: argparse.Namespace) -> int:
    """Baselines are not touched: what was accepted is a copy. Its run stays too, unless it is asked for: `calibrate`,
    `bridge` and a review need its launches."""
    on_record = set() if options.accepted_too else BaselineStore.of(options.root, options.baselines).run_ids()
    before = run_ids(options.root)
    pruned = prune(options.root, options.keep, on_record)
    for old in pruned:
        print(f"deleted {old.run_id} ({size(old.size_bytes)})")
    spared = len(on_record.intersection(before[: max(0, len(before) - options.keep)]))
    why = f", {spared} older of them on record (--accepted-too deletes those)" if spared else ""
    print(f"{len(pruned)} deleted, {len(run_ids(options.root))} kept{why}")
    _tell_strays(options)
    return OK


def _tell_strays(options: argparse.Namespace) -> int:
    """On stderr, one a line; how many there are."""
    found = strays(options.root)
    for stray in found:
        print(f"pytest-charllm: {why_lost(stray)}", file=sys.stderr)
    return len(found)


def _listed(run: RunDirectory) -> tuple[str, ...]:
    told = {judgement.scenario_key: str(judgement.verdict) for judgement in run.judgements()}
    told |= {key: ended.outcome for key, ended in run.ended().items()}
    verdicts = Counter(told.values())
    return (
        run.id,
        f"{run.info.machine.variant} {run.info.machine.shape}",
        run.info.tier,
        f"{run.status}, replayed" if run.info.replayed else str(run.status),
        ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
        " ".join(fault.name for fault in run.info.faults),
        size(size_bytes(run.path)),
    )


def _case(run: RunDirectory, key: str, ended: Ended | None) -> Case:
    launches = run.launches(key)
    judgement = run.judgement(key)
    measurements = run.measurements(key)
    verdict, because = "NOT_JUDGED", "still running" if run.status is RunStatus.RUNNING else "the run ended before"
    failed: Launch | None = next((launch for launch in launches if launch.status is not Status.COMPLETED), None)
    if ended is not None:
        verdict, because = ended.outcome, ended.because
    elif judgement is not None:
        verdict, because = str(judgement.verdict), judgement.because
    elif failed is not None:
        verdict, because = failed.status.name, failed.first_cause
    is_cpu = run.info.machine.is_cpu
    work = next((launch.scenario.work for launch in launches), None)
    return Case(
        key=key,
        verdict=verdict,
        because=because,
        judgement=judgement,
        measurements=measurements,
        launches=[launch for launch in launches if launch.pass_ is Pass.TIMED],
        not_recordable=not_recordable(measurements, work, tier(run.info.tier, is_cpu), is_cpu),
    )
