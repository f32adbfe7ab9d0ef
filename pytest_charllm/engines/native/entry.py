"""From a request to a report, inside one rank."""

from __future__ import annotations

import torch

from pytest_charllm.engines.errors import OutOfMemory
from pytest_charllm.engines.native import diagnostic, timed, traced
from pytest_charllm.engines.native.attention import preferred_backends
from pytest_charllm.engines.native.setup import MakeStep, Setup, build_step
from pytest_charllm.engines.native.world import join
from pytest_charllm.engines.progress import Progress
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Pass, RankReport, RankRequest
from pytest_charllm.scenario.capabilities import unsupported
from pytest_charllm.scenario.models import sequence, shape_of

_PASSES = {Pass.TIMED: timed.run, Pass.DIAGNOSTIC: diagnostic.run, Pass.TRACED: traced.run}


def run(request: RankRequest, progress: Progress, import_s: float, make_step: MakeStep = build_step) -> RankReport:
    """See `engines.native.run`. `make_step` builds the model in training of another engine."""
    scenario = request.scenario
    if reason := unsupported(scenario):
        raise BadInput(f"scenario {scenario.key} cannot be trained: {reason}")
    world = join(request)
    setup = Setup(request, world, shape_of(scenario), sequence(scenario), import_s, make_step)
    pass_ = _PASSES[request.pass_]
    try:
        with preferred_backends(world.device):
            report = pass_(setup, progress)
    except (MemoryError, RuntimeError) as error:
        if cause := _out_of_memory(error):
            raise OutOfMemory(f"rank {world.rank} on {world.device}: {str(cause).splitlines()[0]}") from error
        raise
    progress("report")
    return report


def _out_of_memory(error: BaseException | None) -> BaseException | None:
    """The failed allocation that an error comes from: a pipeline raises another from it. The CPU allocator has no
    exception type of its own."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return error
        error = error.__cause__
    return None
