"""Where the time of a traced step goes, over all ranks; and why it is not known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.records import METRICS, Finding, Launch, RankReport, Value
from pytest_charllm.records.breakdown import StepBreakdown
from pytest_charllm.records.metrics import TRACED_METRICS

ON_CPU = "not measured on a CPU: no trace tells there whether a thread computes or waits for gloo"
ON_GPU = "only a step under the profiler tells"
SLOWED = 0.05
"""From here on the profiler's own cost is worth a line."""

_FIELDS = dict(zip(TRACED_METRICS, ("compute_ns", "communication_ns", "exposed_ns", "idle_ns"), strict=True))


def traced_values(launch: Launch) -> dict[str, Value]:
    """Seconds of one step, mean over ranks, of each the step of median length: its parts still add up to it."""
    silent = [report for report in launch.ranks if not report.breakdown]
    if silent:
        why = "; ".join(silent[0].notes) or "nothing was traced"
        return {metric: _none(metric, f"rank {silent[0].rank}: {why}") for metric in TRACED_METRICS}
    steps = [_median_step(report) for report in launch.ranks]
    return {
        metric: Value(value=statistics.fmean(getattr(step, name) for step in steps) / 1e9, unit="s", coverage=1.0)
        for metric, name in _FIELDS.items()
    }


def untraced_values(is_cpu: bool) -> dict[str, Value]:
    """Those of any other pass."""
    return {metric: _none(metric, ON_CPU if is_cpu else ON_GPU) for metric in TRACED_METRICS}


def traced_findings(reports: Sequence[RankReport]) -> list[Finding]:
    """How much the profiler slowed the steps, where that is more than 5 %: gaps are longer than without it."""
    ratios = [
        _median_step(report).span_ns / 1e9 / report.untraced_step_s
        for report in reports
        if report.breakdown and report.untraced_step_s
    ]
    if not ratios or max(ratios) <= 1 + SLOWED:
        return []
    text = f"the profiler slowed the step by {100 * (max(ratios) - 1):.0f} %: gaps of the host are longer for it"
    return [Finding(kind="profiler-slows", text=text)]


def _median_step(report: RankReport) -> StepBreakdown:
    spans_ns = sorted(report.breakdown, key=lambda step: step.span_ns)
    return spans_ns[(len(spans_ns) - 1) // 2]


def _none(metric: str, reason: str) -> Value:
    return Value(value=None, unit=METRICS[metric].unit, reason=reason)
