"""Which of a script's steps are the window: decided over all ranks, as its ranks cannot ask each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from pytest_charllm.records import (
    Finding,
    Launch,
    LogStatus,
    RankReport,
    StepMarks,
    StepSeries,
    Warmup,
    WindowEdges,
    WindowRule,
)
from pytest_charllm.records.warmup import steady_step_s, warmup_ended, window_steps
from pytest_charllm.scenario import Script

NO_WINDOW = "a log does not say when its steps ran, so no sensor can be read beside them; mark_step() does"


_FAR = (
    LogStatus.NOT_FINITE, LogStatus.INCOMPLETE, LogStatus.AMBIGUOUS, LogStatus.NO_STEPS, LogStatus.UNKNOWN,
    LogStatus.NO_LOG,
)  # fmt: skip


def windowed(launch: Launch) -> Launch | str:
    """The launch with the steps, edges and tokens of its window in every rank's report, or why there is no window."""
    reports = _of_log(launch.ranks) if _reads_log(launch) else _of_marks(launch.ranks, launch.window)
    return reports if isinstance(reports, str) else replace(launch, ranks=reports)


def script_findings(launch: Launch) -> list[Finding]:
    """That speed is judged by the step alone, where nobody said how many tokens it has."""
    if launch.ranks[0].tokens_per_step is not None:
        return []
    how = "Script(tokens_per_step=...)" + ("" if _reads_log(launch) else " or mark_step(tokens=...)")
    text = f"tokens per step are not known, so step time alone is judged; say them by {how}"
    return [Finding(kind="tokens-unknown", text=text)]


def semantics(launch: Launch) -> dict[str, str]:
    """What step times and tokens are made of: part of comparability, as the meaning of a sensor is."""
    declared = launch.scenario.work.tokens_per_step if isinstance(launch.scenario.work, Script) else None
    meanings = {"step_time": launch.ranks[0].step_source}
    if launch.ranks[0].tokens_per_step is not None:
        meanings["tokens_per_step"] = f"{declared} declared" if declared is not None else "told by the script"
    return meanings


def _reads_log(launch: Launch) -> bool:
    return isinstance(launch.scenario.work, Script) and launch.scenario.work.reads_log


def _of_log(reports: Sequence[RankReport]) -> tuple[RankReport, ...] | str:
    """A log tells of the job, not of a rank: the one that tells most stands for all."""
    teller = max(reports, key=lambda report: len(report.steps.wall_s) if report.steps is not None else 0)
    if teller.steps is None:
        return _unmeasured(sorted(reports, key=_distance)) or "no rank's log was read"
    return tuple(
        replace(
            report,
            steps=teller.steps,
            warmup=teller.warmup,
            tokens_per_step=teller.tokens_per_step,
            step_source=teller.step_source,
        )
        for report in reports
    )


def _distance(report: RankReport) -> int:
    """How far the output of a rank was from telling its steps: the closest is worth a line, not the empty ones."""
    status = report.unmeasured.status if report.unmeasured is not None else ""
    return _FAR.index(LogStatus(status)) if status in set(LogStatus) else len(_FAR)


def _of_marks(reports: Sequence[RankReport], rule: WindowRule) -> tuple[RankReport, ...] | str:
    reason = _unmeasured(reports)
    if reason is not None:
        return reason
    marks = [report.marks for report in reports if report.marks is not None]
    if len(marks) < len(reports):
        return f"{len(marks)} of {len(reports)} ranks report marks"
    slowest_s = [max(steps) for steps in zip(*(_steps_s(each.mono_ns) for each in marks), strict=False)]
    warmup = _warmup(rule, slowest_s)
    if warmup is None:
        calls = _calls(rule.warmup_steps + rule.min_steps)
        return f"too-few-steps: warm-up did not end within {len(slowest_s)} steps; call mark_step {calls} times or more"
    count = window_steps(rule, steady_step_s(rule, slowest_s[: warmup.steps]))
    if warmup.steps + count > len(slowest_s):
        return (
            f"too-few-steps: {len(slowest_s)} steps, warm-up took {warmup.steps} of them, the window needs {count}; "
            f"call mark_step {_calls(warmup.steps + count)} times or more"
        )
    begin, end = warmup.steps, warmup.steps + count
    tokens = _tokens(marks[0], begin, end)
    return tuple(
        replace(
            report,
            steps=StepSeries(
                wall_s=tuple(_steps_s(each.mono_ns)[begin:end]), cpu_s=tuple(_steps_s(each.cpu_ns)[begin:end])
            ),
            window=WindowEdges(begin_mono_ns=each.mono_ns[begin], end_mono_ns=each.mono_ns[end]),
            warmup=warmup,
            tokens_per_step=report.tokens_per_step if report.tokens_per_step is not None else tokens,
        )
        for report, each in zip(reports, marks, strict=True)
    )


def _calls(steps: int) -> int:
    """Of `mark_step`: what lies between two of them is a step."""
    return steps + 1


def _unmeasured(reports: Sequence[RankReport]) -> str | None:
    """The first rank's reason. Where all have the same it is told of the script, not of a rank."""
    told = [(report.rank, report.unmeasured) for report in reports if report.unmeasured is not None]
    if not told:
        return None
    rank, first = told[0]
    whose = "" if len(told) == len(reports) else f"rank {rank}: "
    return f"{first.status}: {whose}{first.message}"


def _warmup(rule: WindowRule, step_s: Sequence[float]) -> Warmup | None:
    ended = (warmup_ended(rule, step_s[:steps]) for steps in range(1, len(step_s) + 1))
    return next((warmup for warmup in ended if warmup is not None), None)


def _steps_s(instants_ns: Sequence[int]) -> list[float]:
    return [(later - earlier) / 1e9 for earlier, later in pairwise(instants_ns)]


def _tokens(marks: StepMarks, begin: int, end: int) -> int | None:
    """Mean over the steps of the window: each call says those of the step it ends. None where nothing says any: with
    none at all there is no rate, and no energy of one."""
    told = marks.tokens[begin + 1 : end + 1]
    return round(statistics.fmean(told)) or None if told else None
