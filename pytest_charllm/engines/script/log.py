"""Step times of a script that marks none: from its own output, or from the log file that was named."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.engines.errors import NonFinite
from pytest_charllm.engines.logs import read_logs
from pytest_charllm.records import LogStatus, LogSteps, RankReport, StepSeries, Unmeasured, WindowRule
from pytest_charllm.scenario import Script

AUTO = "auto"


def reader_of(script: Script) -> str | None:
    """Name of its log reader, None to find out. Raises `BadInput` for one that does not exist: before the training."""
    reader = None if script.log == AUTO else script.log
    read_logs([], reader)
    return reader


def told_by_log(report: RankReport, script: Script, file: Path | None, window: WindowRule) -> RankReport:
    """The report with the steps that the log tells of. Raises `NonFinite` where a training loss in it is no number."""
    paths = [file] if file is not None else _outputs()
    result = read_logs(paths, reader_of(script), window=window)
    if isinstance(result, LogSteps):
        return _with_steps(report, result)
    if result.status is LogStatus.NOT_FINITE:
        raise NonFinite(result.message)
    return replace(report, unmeasured=Unmeasured(status=result.status, message=result.message))


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
    return [Path(os.readlink(f"/proc/self/fd/{number}")) for number in (1, 2)]
