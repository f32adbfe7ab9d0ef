"""From a request to a report, inside one rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from pytest_charllm.engines.collective.sweep import times_of
from pytest_charllm.engines.collective.transport import ask_nccl, gloo_transport, nccl_transport
from pytest_charllm.engines.native.world import World, meet
from pytest_charllm.engines.progress import Progress
from pytest_charllm.engines.surroundings import report_of
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Pass, Phases, RankReport, RankRequest, WindowEdges
from pytest_charllm.records.faults import format_fault
from pytest_charllm.scenario import Collective
from pytest_charllm.scenario.capabilities import unsupported
from pytest_charllm.scenario.collective import sizes_of


def run(request: RankRequest, progress: Progress, import_s: float) -> RankReport:
    """See `engines.collective.run`."""
    scenario, work = request.scenario, request.scenario.work
    if not isinstance(work, Collective) or (reason := unsupported(scenario)):
        raise BadInput(f"{scenario.key} cannot be swept: {reason if isinstance(work, Collective) else 'no collective'}")
    if request.pass_ is not Pass.TIMED:
        raise BadInput(f"a collective has no {request.pass_} pass: its results are checked beside its times")
    if request.faults:
        raise BadInput(f"fault {format_fault(request.faults[0])}: nothing can be injected into a collective alone")
    log = None
    if request.device == "cuda":
        log = ask_nccl(os.environ, Path(request.out_dir) / f"nccl.{os.environ.get('RANK', '0')}.log")
    progress("build")
    started = time.perf_counter()
    world = meet(request)
    if world.size < 2:
        raise BadInput(f"{scenario.key} has one rank: there is nobody to talk to")
    world.barrier()
    built = time.perf_counter()
    begin_ns = time.monotonic_ns()
    messages = []
    for number, size in enumerate(sizes_of(work)):
        progress("window", step=number)  # between the sizes: nothing is timed just then
        messages.append(times_of(work.op, size, world))
    end_ns = time.monotonic_ns()
    progress("report")
    return report_of(
        request,
        world.rank,
        world.size,
        tokens_per_step=None,
        phases=Phases(import_s=import_s, build_s=built - started, window_s=(end_ns - begin_ns) / 1e9),
        window=WindowEdges(begin_mono_ns=begin_ns, end_mono_ns=end_ns),
        messages=tuple(messages),
        transport=_transport(world, log),
    )


def _transport(world: World, log: Path | None) -> str:
    if world.device.type != "cuda":
        return gloo_transport()
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return nccl_transport(version, log.read_text(errors="replace") if log is not None and log.exists() else "")
