"""What the rules look at: each quantity now and on record, and the reason where there is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_charllm.judge.foreign import CALIBRATION, allowed, known_ratio
from pytest_charllm.judge.reference import cards_of
from pytest_charllm.judge.wording import moved, name
from pytest_charllm.records import (
    METRICS,
    Baseline,
    BaselineSample,
    BaselineStack,
    Measurement,
    MetricVerdict,
    Verdict,
    numbers_of,
    why_missing,
)
from pytest_charllm.records.metrics import TRACED_METRICS

SPEEDS = ("throughput", "step_time", "cost_cpu", "cost_wall", "step_cpu_time")
"""What is called speed, the first that regressed being the one that is told."""
ALIKE = ("matmul_time", "copy_time", "all_reduce_time")
"""The same work on every rank, whatever the layout."""
SPOKEN = {
    "throughput": "tokens/s", "step_time": "step time", "step_cpu_time": "CPU time a step", "sm_clock": "SM clock",
    "matmul_time": "matmul calibration", "copy_time": "copy calibration", "all_reduce_time": "all-reduce calibration",
}  # fmt: skip

SCRIPT = "script"
"""Part of the workload: a script's own file."""
PARTS = ("compute_time", "exposed_communication", "host_gap")
"""Of a traced step: together they are all of it."""


class Move(NamedTuple):
    """One metric: medians here and on record. Where one is None, `missing` says why."""

    metric: str
    now: float | None
    before: float | None
    missing: str

    @property
    def change(self) -> float | None:
        """A ratio where the metric is relative, else in its unit."""
        if self.now is None or self.before is None or (METRICS[self.metric].relative and self.before <= 0):
            return None
        return self.now / self.before - 1 if METRICS[self.metric].relative else self.now - self.before

    @property
    def text(self) -> str:
        """``SM clock -5.9 %``, or why that is not known."""
        spoken = SPOKEN.get(self.metric, name(self.metric))
        return f"{spoken} {self.missing}" if self.change is None else f"{spoken} {moved(self.metric, self.change)}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One scenario's launches beside the runs of its reference, reduced to medians."""

    rows: Mapping[str, MetricVerdict]
    launches: Sequence[Measurement]
    samples: Sequence[BaselineSample]
    """Of the reference: those of the cards at hand where there are any."""
    foreign: bool = False
    """Whether they are all of other cards, at whose clocks these need not run."""
    workload: tuple[tuple[str, str, str], ...] = ()
    """(part, on record, here) where both are known and differ."""
    stack_diff: tuple[tuple[str, str | None, str | None], ...] = ()
    traced: Mapping[str, float] = field(default_factory=dict)
    """The parts of a traced step here, in seconds, and those on record; empty where none was made."""
    traced_before: Mapping[str, float] = field(default_factory=dict)
    traced_ranks: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Those parts here by rank, where all ranks do the same work."""

    @classmethod
    def of(
        cls,
        rows: Sequence[MetricVerdict],
        launches: Sequence[Measurement],
        aside: Measurement | None,
        baseline: Baseline | None,
        stack_diff: tuple[tuple[str, str | None, str | None], ...],
    ) -> Evidence:
        recorded = [run for run in baseline.segments()[-1] if run.speed_on_record] if baseline is not None else []
        samples = [sample for run in recorded for sample in run.samples]
        here = {cards_of(launch) for launch in launches}
        untimed = [aside] if aside is not None else []
        traced = {metric: numbers[0] for metric in TRACED_METRICS if (numbers := numbers_of(untimed, metric))}
        measured = [*launches, *untimed]
        return cls(
            rows={row.metric: row for row in rows},
            launches=launches,
            samples=[sample for sample in samples if cards_of(sample) in here] or samples,
            foreign=all(cards_of(sample) not in here for sample in samples),
            workload=workload_diff(recorded, measured),
            stack_diff=stack_diff,
            traced=_parts([traced]),
            traced_before=_parts([run.traced for run in _of_this_level(baseline)]),
            traced_ranks=aside.per_rank if aside is not None else {},
        )

    @property
    def traced_both(self) -> bool:
        """Whether a traced step here can be held against one on record."""
        return bool(self.traced) and bool(self.traced_before)

    @property
    def lost_s(self) -> float:
        """Seconds by which a step became longer, as far as tokens/s tell, from a step as it was traced before."""
        before_s = sum(self.traced_before[part] for part in PARTS) if self.traced_before else 0.0
        return before_s * self.lost / (1 - self.lost) if self.lost < 1 else math.inf

    def move(self, metric: str) -> Move:
        """As it was judged where it was, so that the same numbers are told twice; else medians of all launches."""
        row = self.rows.get(metric)
        if row is not None and row.value is not None and row.reference is not None:
            return Move(metric, row.value, row.reference, "")
        if metric in TRACED_METRICS:
            missing = "not traced here" if metric not in self.traced else ""
            missing = missing or ("" if metric in self.traced_before else "not on record")
            return Move(metric, self.traced.get(metric), self.traced_before.get(metric), missing)
        here = numbers_of(self.launches, metric)
        there = [sample.values[metric] for sample in self.samples if metric in sample.values]
        missing = "" if here else f"not known here ({why_missing(self.launches, metric)})"
        return Move(
            metric,
            statistics.median(here) if here else None,
            statistics.median(there) if there else None,
            missing or ("" if there else "not on record"),
        )

    @property
    def product_slower(self) -> float | None:
        """The change of the matrix product, beyond that for which the judge has allowed where these are other cards."""
        change = self.move(CALIBRATION).change
        ratio = known_ratio(row.card_ratio for row in self.rows.values())
        return None if change is None else (1 + change) / (allowed(ratio) if self.foreign else 1.0) - 1

    def regressed(self, *metrics: str) -> bool:
        return any(metric in self.rows and self.rows[metric].verdict is Verdict.REGRESSION for metric in metrics)

    @property
    def speed(self) -> Move | None:
        """The first speed that regressed."""
        return next((self.move(metric) for metric in SPEEDS if self.regressed(metric)), None)

    @property
    def lost(self) -> float:
        """Share of the speed that was lost, above 0 where it is slower; 0 where no speed regressed."""
        speed = self.speed
        if speed is None or speed.change is None:
            return 0.0
        return -speed.change if speed.metric == "throughput" else 1 - 1 / (1 + speed.change)

    @property
    def window_s(self) -> float | None:
        known = [launch.window_s for launch in self.launches if launch.window_s is not None]
        return statistics.median(known) if known else None

    def ranks(self, metric: str) -> tuple[float, ...]:
        """One median a rank over the launches; of what the step itself does, as ratios to that rank's on record.

        Ranks of a pipeline do different work, but each the same as before; calibrations are alike on all of them, and
        so are the parts of a traced step, which are there by rank only where their work is.
        Empty where a rank has none, or nothing on record to hold it against: another card's clock is not, since cards
        differ by more at their cap than a slow one does.
        """
        if metric in TRACED_METRICS:
            return columns([self.traced_ranks.get(metric, ())])
        now = columns([launch.per_rank.get(metric, ()) for launch in self.launches])
        if metric in ALIKE:
            return now
        here = {launch.device_uuids for launch in self.launches}  # in the order of their ranks
        before = columns([sample.per_rank.get(metric, ()) for sample in self.samples if sample.device_uuids in here])
        if len(before) != len(now) or not all(value > 0 for value in before):
            return ()
        return tuple(value / recorded for value, recorded in zip(now, before, strict=True))

    def slot(self, rank: int) -> str:
        """``GPU-7cd6... slot 3``, or the rank alone where it has no GPU."""
        uuid = self.uuid(rank)
        return f"rank {rank}" if uuid is None else f"{uuid[:8]}... slot {rank}"

    def uuid(self, rank: int) -> str | None:
        uuids = self.launches[0].device_uuids if self.launches else ()
        return uuids[rank] if rank < len(uuids) else None

    @property
    def is_edited(self) -> bool:
        """Whether the script that ran is another than the one on record."""
        return any(part == SCRIPT for part, _, _ in self.workload)

    @property
    def changed(self) -> str:
        """``driver 575 -> 580``, or that no software changed."""
        parts = [f"{part} {recorded or 'none'} -> {here or 'none'}" for part, recorded, here in self.stack_diff]
        if parts:
            return f"changed: {', '.join(parts)}"
        return "no other software changed" if self.is_edited else "no software changed"


def workload_diff(
    recorded: Sequence[BaselineStack], measured: Sequence[Measurement]
) -> tuple[tuple[str, str, str], ...]:
    """(part, on record, here) of what both know and is not the same; of several runs on record the last counts."""
    before = {part: text for run in recorded for part, text in run.workload.items()}
    now = {part: text for launch in measured for part, text in launch.workload.items()}
    return tuple((part, was, now[part]) for part, was in before.items() if now.get(part, was) != was)


def columns(rows: Sequence[Sequence[float | None]]) -> tuple[float, ...]:
    """Medians by rank; () unless every rank has a value in some launch."""
    width = max((len(row) for row in rows), default=0)
    known = [[row[rank] for row in rows if rank < len(row)] for rank in range(width)]
    numbers = [[value for value in column if value is not None] for column in known]
    return tuple(statistics.median(column) for column in numbers) if all(numbers) else ()


def _of_this_level(baseline: Baseline | None) -> list[BaselineStack]:
    """Runs of the newest software that were traced, else of the last one before it, back to the last new level.

    A night that passes traces nothing: a driver that changed no speed goes on record without a trace of its own.
    """
    for segment in reversed(baseline.segments()) if baseline is not None else ():
        if any(run.traced for run in segment):
            return segment
        if segment[0].new_level:
            break
    return []


def _parts(traced: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians by metric, of those that have all."""
    whole = [numbers for numbers in traced if all(metric in numbers for metric in TRACED_METRICS)]
    return {metric: statistics.median(numbers[metric] for numbers in whole) for metric in TRACED_METRICS if whole}
