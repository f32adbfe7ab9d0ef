"""What the step clocks of all ranks say: step time, the two CPU gates, and what looks odd about the series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from pytest_charllm.records import METRICS, Calibration, Finding, RankReport, StepSeries, Value

DRIFT_LIMIT = 0.015
"""First and second half of the window further apart than this: something was still changing."""
DRIFT_LIMIT_CPU = 0.05
"""On a shared CPU single steps scatter by percents, so the halves of a short window do too."""
SLOPE_SECONDS = 60.0
"""A slope a minute is told of steps that together last as long."""
SLOPE_GROUPS = 10
"""Single steps scatter; a slope is told from the medians of this many groups of them."""
LONGEST_STEP_S = 1e6
"""Twelve days: no window waits for such a step."""
GROWTH_LIMIT = 10.0
"""Python objects a step that stay. What the window itself keeps of a step are 2 on a GPU and 4 on a CPU."""
BIMODAL_RATIO = 1.3
SLOW_RANK_Z = 5.0
SLOW_RANK_SHARE = 0.03
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""


def unusable(reports: Sequence[RankReport]) -> str | None:
    """Why the ranks' step series do not make one measurement, or None. All else in here needs them to."""
    for report in reports:
        if report.steps is None or not report.steps.wall_s:
            return f"rank {report.rank} reports no steps"
        if (broken := _broken(report.steps)) is not None:
            return f"rank {report.rank}: {broken}"
    if len({len(_steps(report).wall_s) for report in reports}) > 1:
        told = ", ".join(f"rank {report.rank}: {len(_steps(report).wall_s)}" for report in reports)
        return f"ranks report different numbers of steps ({told})"
    return None


def _broken(steps: StepSeries) -> str | None:
    """The first step whose time cannot be true, or None. A median would pass over it, and over what it says of the
    others. CPU time may stand still through a step that only waits."""
    for clock, times_s in (("wall", steps.wall_s), ("CPU", steps.cpu_s)):
        for index, time_s in enumerate(times_s):
            if not 0 <= time_s < LONGEST_STEP_S or (clock == "wall" and time_s == 0):
                return f"step {index} took {time_s:g} s of {clock} time: not a number, or a clock that was set"
    return None


def slowest_steps_s(reports: Sequence[RankReport]) -> tuple[float, ...]:
    """Each step's time on its slowest rank: a synchronous step is over when the last rank is."""
    return tuple(max(step) for step in zip(*(_steps(report).wall_s for report in reports), strict=True))


def cost_cpu(reports: Sequence[RankReport]) -> Value:
    """Gate A: a step's CPU time over that of the calibrations right after it; median over steps, mean over ranks.

    A step and its neighbours share the weather of the machine, and the median leaves out the steps that a gust hit
    alone: over 16 launches of two DDP scenarios under changing load this scatters by 0.8 to 1.1 %, where the ratio of
    the sums does by 1.1 to 1.6 %, and that to the matmul calibration alone by 2.5 to 3.0 %.
    """
    unit = METRICS["cost_cpu"].unit
    costs = []
    for report in reports:
        step_s = _steps(report).cpu_s
        calibrations_s = [calibration.cpu_s for calibration in report.calibration]
        if not step_s or not calibrations_s or any(len(times_s) != len(step_s) for times_s in calibrations_s):
            return Value(value=None, unit=unit, reason=f"rank {report.rank} has no calibration for each of its steps")
        beside_s = [sum(times_s) for times_s in zip(*calibrations_s, strict=True)]
        if not all(beside_s):
            return Value(value=None, unit=unit, reason=f"rank {report.rank} has calibrations without CPU time")
        costs.append(statistics.median(step / beside for step, beside in zip(step_s, beside_s, strict=True)))
    return Value(value=statistics.mean(costs), unit=unit, coverage=1.0)


def cost_wall(reports: Sequence[RankReport]) -> Value:
    """Gate B: wall time of the steps over that of the frozen reference decoder between them, ratio of sums."""
    step_s, decoder_s = 0.0, 0.0
    for report in reports:
        calibration = _calibration(report, "decoder")
        if calibration is None or not sum(calibration.wall_s):
            return Value(value=None, unit="x decoder", reason=f"rank {report.rank} has no decoder calibration")
        step_s += sum(_steps(report).wall_s)
        decoder_s += sum(calibration.wall_s)
    return Value(value=step_s / decoder_s, unit="x decoder", coverage=1.0)


def busyness(reports: Sequence[RankReport]) -> Value:
    """Wall over CPU time of the steps; of a script that is read by its log, of all of it. Near 1 on a quiet machine;
    above, somebody else had the cores."""
    scripts = [report.script for report in reports if report.script is not None]
    if all(_steps(report).cpu_s for report in reports):
        wall_s = sum(sum(_steps(report).wall_s) for report in reports)
        cpu_s = sum(sum(_steps(report).cpu_s) for report in reports)
        source = None
    else:
        wall_s, cpu_s = sum(each.wall_s for each in scripts), sum(each.cpu_s for each in scripts)
        source = "whole script"
    if not cpu_s:
        return Value(value=None, unit="wall/CPU", reason="no CPU time of steps")
    return Value(value=wall_s / cpu_s, unit="wall/CPU", coverage=1.0, source=source)


def step_findings(reports: Sequence[RankReport], is_cpu: bool) -> list[Finding]:
    """Not steady, drifting, bimodal, slow rank, growing."""
    return [
        *_not_steady(reports),
        *_shape(slowest_steps_s(reports), DRIFT_LIMIT_CPU if is_cpu else DRIFT_LIMIT),
        *_slow_ranks(reports, is_cpu),
        *_growing(reports),
    ]


def _not_steady(reports: Sequence[RankReport]) -> list[Finding]:
    unsteady = [report for report in reports if report.warmup is not None and not report.warmup.steady]
    if not unsteady or unsteady[0].warmup is None:
        return []
    warmup = unsteady[0].warmup
    text = f"warm-up ended after {warmup.steps} steps without being steady: {warmup.reason}"
    return [Finding(kind="not-steady", text=text)]


def _shape(steps_s: Sequence[float], drift_limit: float) -> list[Finding]:
    findings: list[Finding] = []
    if len(steps_s) < 4:
        return findings
    half = len(steps_s) // 2
    first, second = statistics.median(steps_s[:half]), statistics.median(steps_s[half:])
    drift = second / first - 1
    if abs(drift) > drift_limit:
        text = f"median step of the second half {100 * drift:+.1f} % against the first{_slope(steps_s, drift)}"
        findings.append(Finding(kind="drifting", text=text))
    ratio = statistics.quantiles(steps_s, n=20, method="inclusive")[-1] / statistics.median(steps_s)
    if ratio > BIMODAL_RATIO:
        text = f"the slowest twentieth of the steps took {ratio:.2f} x the median or more"
        findings.append(Finding(kind="bimodal", text=text))
    return findings


def _slope(steps_s: Sequence[float], drift: float) -> str:
    """For the end of the line, where the window tells it: seconds of one are no rate a minute."""
    if sum(steps_s) < SLOPE_SECONDS:
        return ""
    slope = drift_slope(steps_s)
    # A jump between halves that each go the other way.
    return f", {100 * slope:+.1f} % a minute" if slope * drift > 0 else ", by a jump and not steadily"


def drift_slope(steps_s: Sequence[float]) -> float:
    """How fast the step's time changes: a ratio of its median a minute, by Theil and Sen's median of slopes.

    Between medians of `SLOPE_GROUPS` groups of neighbouring steps, at the middle of each group's time.
    """
    size = max(1, len(steps_s) // SLOPE_GROUPS)
    points, elapsed_s = [], 0.0
    for begin in range(0, len(steps_s) - size + 1, size):
        group = steps_s[begin : begin + size]
        points.append((elapsed_s + sum(group) / 2, statistics.median(group)))
        elapsed_s += sum(group)
    slopes = [(late - early) / (t1 - t0) for (t0, early), (t1, late) in combinations(points, 2)]
    return 60 * statistics.median(slopes) / statistics.median(steps_s)


def _growing(reports: Sequence[RankReport]) -> list[Finding]:
    """Ranks that keep more and more Python objects: a leak slows the collector, and ends in a crash after days."""
    findings = []
    for report in reports:
        if report.objects is None or report.steps is None:
            continue
        before, after = report.objects
        a_step = (after - before) / len(report.steps.wall_s)
        if a_step > GROWTH_LIMIT:
            text = f"rank {report.rank} keeps {a_step:,.0f} Python objects a step: {before:,} before, {after:,} after"
            findings.append(Finding(kind="growing", text=text))
    return findings


def _slow_ranks(reports: Sequence[RankReport], is_cpu: bool) -> list[Finding]:
    """Ranks whose median step stands out from the other ranks'. On a CPU by CPU time: waiting evens out wall time."""
    if is_cpu and not all(_steps(report).cpu_s for report in reports):
        return []
    times_s = [statistics.median(_steps(report).cpu_s if is_cpu else _steps(report).wall_s) for report in reports]
    middle = statistics.median(times_s)
    sigma = MAD_TO_SIGMA * statistics.median(abs(time_s - middle) for time_s in times_s)
    return [
        Finding(
            kind="slow-rank",
            text=f"rank {report.rank} on {report.device.uuid or report.host}: median step {time_s:.4g} s, "
            f"{100 * (time_s / middle - 1):+.1f} % of the ranks' median",
        )
        for report, time_s in zip(reports, times_s, strict=True)
        if time_s - middle > max(SLOW_RANK_Z * sigma, SLOW_RANK_SHARE * middle)
    ]


def _steps(report: RankReport) -> StepSeries:
    return report.steps or StepSeries(wall_s=())


def _calibration(report: RankReport, kind: str) -> Calibration | None:
    return next((calibration for calibration in report.calibration if calibration.kind == kind), None)
