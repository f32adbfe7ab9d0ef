"""Known regressions: ``known.toml`` says which scenario is slower than its baseline, by how much, until when and why.

    [[known]]
    scenario = "llama3-8b.dp8*"       # a pattern on keys
    metric = "throughput"             # or as tables print it: "tokens/s/GPU", "Gate A", "W"
    delta = 0.05                      # relative where the metric is, else in its unit
    until = 2027-01-31                # the last day it holds
    ticket = "PERF-1234"              # where it is followed up
    because = "all-gather of the new NCCL, reported upstream"

A waiver never hides more than it says: past its delta or its date, on another metric, or where a strict check failed,
the test is red again.
"""

from __future__ import annotations

import datetime
import math
import os
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import resolve
from pytest_charllm.records import Judgement, MetricVerdict, Verdict, metric_named
from pytest_charllm.records.metrics import METRICS


class Waiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. `hardware` narrows it to one variant, or a family of them, as `--gpu` takes it."""

    scenario: str
    metric: str
    delta: float
    until: datetime.date
    ticket: str
    because: str = ""
    hardware: str | None = None

    def told(self, *more: str) -> str:
        """``slower softmax in the new torch (PERF-1234, known until 2027-01-31)``."""
        return f"{self.because} ({', '.join([self.ticket, *more])})".lstrip()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    known: tuple[Waiver, ...] = ()


def read_waivers(paths: Sequence[Path]) -> tuple[Waiver, ...]:
    """All entries of the files that exist. Raises `BadInput` with file and field."""
    return tuple(waiver for path in paths if os.path.exists(path) for waiver in _read(path))


def waive(
    judgement: Judgement, waivers: Sequence[Waiver], variant: str, today: datetime.date
) -> tuple[str | None, tuple[str, ...]]:
    """Why this regression is known, or None; and what stood in the way of waivers that name it, a line each."""
    moved = [metric for metric in judgement.metrics if metric.verdict is Verdict.REGRESSION]
    if not moved or not all(check.ok for check in judgement.checks):
        return None, ()
    reasons, lapsed = [], []
    for metric in moved:
        named = [waiver for waiver in waivers if _names(waiver, judgement.scenario_key, metric.metric, variant)]
        limits = [(waiver, _lapse(waiver, metric, today)) for waiver in named]
        holding = [waiver for waiver, lapse in limits if lapse is None]
        if holding:
            reasons.append(f"{metric.metric}: {holding[0].told(f'known until {holding[0].until}')}")
        lapsed += [lapse for _, lapse in limits if lapse is not None and not holding]
    return ("; ".join(reasons) if len(reasons) == len(moved) else None), tuple(lapsed)


def _read(path: Path) -> tuple[Waiver, ...]:
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).known
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        fields = "scenario, metric, delta, until (a date), ticket; also because, hardware"
        raise BadInput(f"{path}: {error}; it is TOML, each [[known]] with {fields}") from None
    waivers = []
    for number, waiver in enumerate(entries, 1):
        try:
            waivers.append(_checked(waiver))
        except BadInput as error:
            raise BadInput(f"{path}: entry {number}: {error}") from None
    return tuple(waivers)


def _checked(waiver: Waiver) -> Waiver:
    """With the id of its metric. Raises `BadInput` for one that waives nothing, or whatever comes."""
    metric, delta = metric_named(waiver.metric), waiver.delta
    if waiver.hardware is not None:
        resolve(waiver.hardware)
    if not 0 < delta < math.inf or not waiver.ticket.strip():
        raise BadInput("delta must be above 0 and finite, and ticket must say where it is followed up")
    if METRICS[metric].relative and delta > 1:
        raise BadInput(f"delta = {delta:g} is {100 * delta:g} %; write {delta / 100:g} for {delta:g} %")
    return msgspec.structs.replace(waiver, metric=metric)


def _names(waiver: Waiver, key: str, metric: str, variant: str) -> bool:
    return (
        waiver.metric == metric
        and fnmatchcase(key, waiver.scenario)
        and (waiver.hardware is None or variant in [each.variant for each in resolve(waiver.hardware)])
    )


def _lapse(waiver: Waiver, metric: MetricVerdict, today: datetime.date) -> str | None:
    if today > waiver.until:
        return f"{metric.metric} was known until {waiver.until}: {waiver.told()}"
    if metric.change is None or abs(metric.change) > waiver.delta:
        return f"{metric.metric} is known up to {waiver.delta:g} only: {waiver.told()}"
    return None
