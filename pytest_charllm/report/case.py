"""What is known about one scenario at the end of a run: what every text here is made from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_charllm.judge.verdicts import severity
from pytest_charllm.records import Judgement, Launch, Measurement, MetricVerdict, Status, Verdict, numbers_of

PRIMARY = ("throughput", "step_time", "cost_cpu", "step_cpu_time")
"""What stands for a scenario when nothing moved: tokens per second, or the step where tokens are not known; on a CPU
Gate A, or a script's CPU time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """`verdict` is a `Verdict` or how a launch ended (CRASHED, HUNG...); `because` is its one line."""

    key: str
    verdict: str
    because: str
    judgement: Judgement | None = None
    measurements: Sequence[Measurement] = ()
    """Timed ones, all rounds in order."""
    launches: Sequence[Launch] = ()
    not_recordable: str = ""
    """Why these launches cannot go on record, and what to do; "" where they can."""

    @property
    def failed(self) -> Launch | None:
        """The first launch that did not complete."""
        return next((launch for launch in self.launches if launch.status is not Status.COMPLETED), None)

    @property
    def faults(self) -> list[tuple[str, float | None, float | None]]:
        """Injected faults: name, requested share of the clean step, and achieved one (median over launches, ranks)."""
        applied = [fault for launch in self.launches for report in launch.ranks for fault in report.faults]
        faults = {}
        for launch in self.launches:
            for fault in launch.faults:
                achieved = [a.achieved for a in applied if a.name == fault.name and a.achieved is not None]
                faults[fault.name] = (fault.name, fault.value, statistics.median(achieved) if achieved else None)
        return list(faults.values())

    def metric(self, metric: str) -> MetricVerdict | None:
        metrics = self.judgement.metrics if self.judgement else ()
        return next((row for row in metrics if row.metric == metric), None)

    def value(self, metric: str) -> float | None:
        """As it was judged, else the median over the launches; None where nobody measured it."""
        judged = self.metric(metric)
        if judged is not None and judged.value is not None:
            return judged.value
        numbers = numbers_of(self.measurements, metric)
        return statistics.median(numbers) if numbers else None

    @property
    def spoke(self) -> list[MetricVerdict]:
        """The metrics that decided: those that moved, by how many tolerances; else the primary one if it was judged."""
        metrics = self.judgement.metrics if self.judgement else ()
        for verdict in (Verdict.REGRESSION, Verdict.IMPROVED):
            moved = [row for row in metrics if row.verdict is verdict]
            if moved:
                return sorted(moved, key=severity, reverse=True)
        held = [row for row in metrics if row.verdict is Verdict.PASS and row.change is not None]
        return [row for row in held if row.metric in PRIMARY]
