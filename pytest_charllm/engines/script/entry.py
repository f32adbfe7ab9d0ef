"""From a request to a report, inside one rank: the script in between is none of ours."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.engines.progress import Progress
from pytest_charllm.engines.script.log import reader_of, told_by_log
from pytest_charllm.engines.script.marks import read_marks
from pytest_charllm.engines.script.names import PHASE, steps_file
from pytest_charllm.engines.script.program import expand, run_program
from pytest_charllm.engines.surroundings import report_of
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Elapsed, Pass, Phases, RankReport, RankRequest, Unmeasured
from pytest_charllm.records.faults import format_fault
from pytest_charllm.scenario import Script
from pytest_charllm.step import STEPS_PATH


def run(request: RankRequest, progress: Progress) -> RankReport:
    """See `engines.script.run`."""
    script, rank = request.scenario.work, int(os.environ["RANK"])
    if not isinstance(script, Script):
        raise BadInput(f"engine script runs scripts, {request.scenario.key} is none")
    if request.pass_ is not Pass.TIMED:
        raise BadInput(f"a script has no {request.pass_} pass")
    if request.faults:
        raise BadInput(f"fault {format_fault(request.faults[0])}: nothing can be injected into a script")
    reader_of(script)
    world, folder = int(os.environ["WORLD_SIZE"]), Path(request.out_dir)
    steps, out = steps_file(folder, rank), folder / "out"
    progress(PHASE)
    began_s = time.monotonic(), time.process_time()
    digest = run_program(script, [expand(argument, out) for argument in script.args], {STEPS_PATH: str(steps)})
    elapsed = Elapsed(wall_s=time.monotonic() - began_s[0], cpu_s=time.process_time() - began_s[1])
    progress("report")
    report = report_of(
        request, rank, world, tokens_per_step=script.tokens_per_step, phases=Phases(), script=elapsed,
        script_digest=digest,
    )  # fmt: skip
    if script.reads_log:
        file = Path(expand(script.log_file, out)) if script.log_file is not None else None
        return told_by_log(report, script, file, request.window)
    marked = read_marks(steps)
    if isinstance(marked, Unmeasured):
        return replace(report, unmeasured=marked)
    source = "marks, device clock" if marked.marks.on_device else "marks, host clock"
    return replace(report, marks=marked.marks, step_source=source, peak_memory_bytes=marked.peak_memory_bytes)
