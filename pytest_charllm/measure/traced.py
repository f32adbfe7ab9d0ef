"""Where the time of a traced step goes, over all ranks; and why it is not known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.measure.values import missing
from pytest_charllm.records import Finding, Launch, RankReport, Value
from pytest_charllm.records.breakdown import StepBreakdown
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.records.outlier import late
from pytest_charllm.scenario import Scenario

SLOWED = 0.05
"""From here on the profiler's own cost is worth a line."""

_FIELDS = dict(zip(TRACED_METRICS, ("compute_ns", "communication_ns", "exposed_ns", "idle_ns"), strict=True))


def traced_values(launch: Launch) -> dict[str, Value]:
    """Seconds of one step, mean over ranks, of each the step of median length: its parts still add up to it."""
    silent = [report for report in launch.ranks if not report.breakdown]
    if silent:
        why = "; ".join(silent[0].notes) or "nothing was traced"
        return {metric: missing(metric, f"rank {silent[0].rank}: {why}") for metric in TRACED_METRICS}
    steps = [_median_step(report) for report in launch.ranks]
    return {
        metric: Value(value=statistics.fmean(getattr(step, name) for step in steps) / 1e9, unit="s", coverage=1.0)
        for metric, name in _FIELDS.items()
    }


def traced_per_rank(launch: Launch) -> dict[str, tuple[float, ...]]:
    """Seconds of each part on every rank, in rank order, mean over the traced steps, since who waits for whom changes
    from step to step; nothing of ranks that are not to be held against each other: of a single one, where one was not
    traced, or where they differ in their work."""
    if len(launch.ranks) < 2 or not _same_work(launch.scenario) or not all(r.breakdown for r in launch.ranks):
        return {}
    return {
        metric: tuple(statistics.fmean(getattr(step, name) for step in rank.breakdown) / 1e9 for rank in launch.ranks)
        for metric, name in _FIELDS.items()
    }


def traced_findings(launch: Launch) -> list[Finding]:
    """One rank that all others wait for, and how much the profiler slowed the steps."""
    return [*_slow_rank(launch), *_slowed(launch.ranks)]


def _slow_rank(launch: Launch) -> list[Finding]:
    """By who waits for whom: the others' wall time is the late rank's, as they wait for it in their collectives."""
    columns = traced_per_rank(launch)
    found = late(columns)
    if found is None:
        return []
    device, host = launch.ranks[found.rank].device, launch.ranks[found.rank].host
    exposed_s = columns["exposed_communication"]
    others_s = statistics.median(exposed_s[: found.rank] + exposed_s[found.rank + 1 :])
    text = (
        f"rank {found.rank} on {device.uuid or host}: the others wait for it, with {1e3 * found.others_s:.1f} ms of "
        f"communication in a traced step ({1e3 * others_s:.1f} ms exposed) where its own is {1e3 * found.own_s:.1f} ms "
        f"({1e3 * exposed_s[found.rank]:.1f} ms); its compute time {100 * found.by:+.1f} %"
    )
    return [Finding(kind="slow-rank", text=text)]


def _same_work(scenario: Scenario) -> bool:
    """Stages of a pipeline differ by design, and experts by what the router gives them."""
    return scenario.layout.pp == 1 and not scenario.options.real_routing


def _slowed(reports: Sequence[RankReport]) -> list[Finding]:
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
