"""Step times of a script that marks none: from its own output, or from the log file that was named."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.engines.errors import NonFinite
from pytest_charllm.engines.logs import read_log
from pytest_charllm.records import LogProblem, LogStatus, LogSteps, RankReport, StepSeries, Unmeasured, WindowRule
from pytest_charllm.scenario import Script

AUTO = "auto"
_CLOSEST = (
    LogStatus.NOT_FINITE, LogStatus.INCOMPLETE, LogStatus.AMBIGUOUS, LogStatus.NO_STEPS, LogStatus.UNKNOWN,
    LogStatus.NO_LOG,
)  # fmt: skip
"""Of several outputs without steps, the one that came closest to having some is told of."""


def told_by_log(report: RankReport, script: Script, file: Path | None, window: WindowRule) -> RankReport:
    """The report with the steps that the log tells of. Raises `NonFinite` where a training loss in it is no number."""
    reader = None if script.log == AUTO else script.log
    results = [read_log(path, reader, window=window) for path in ([file] if file is not None else _outputs())]
    for result in results:
        if isinstance(result, LogSteps):
            return _with_steps(report, result)
    problems = [result for result in results if isinstance(result, LogProblem)]
    problem = min(problems, key=lambda problem: _CLOSEST.index(problem.status), default=None)
    if problem is None:
        told = "the output of this rank goes to no file; name the log: Script(log_file=...)"
        return replace(report, unmeasured=Unmeasured(status=LogStatus.NO_LOG, message=told))
    if problem.status is LogStatus.NOT_FINITE:
        raise NonFinite(problem.message)
    return replace(report, unmeasured=Unmeasured(status=problem.status, message=problem.message))


def _with_steps(report: RankReport, steps: LogSteps) -> RankReport:
    tokens = report.tokens_per_step if report.tokens_per_step is not None else steps.tokens_per_step
    return replace(
        report,
        steps=StepSeries(wall_s=steps.step_time_s),
        warmup=steps.warmup,
        tokens_per_step=tokens,
        step_source=f"{steps.reader} log, {steps.step_time_from}",
        notes=(*report.notes, *(f"log {finding.kind}: {finding.text}" for finding in steps.findings)),
    )


def _outputs() -> list[Path]:
    """The files that torchrun sends stdout and stderr of this rank to."""
    paths = [Path(os.readlink(f"/proc/self/fd/{number}")) for number in (1, 2)]
    return [path for path in paths if path.is_file()]
