"""What every pass starts from: the model in training, and what a report says before the first step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_charllm.engines.native import ring
from pytest_charllm.engines.native.attention import answering_backend
from pytest_charllm.engines.native.pipeline_step import PipelineStep
from pytest_charllm.engines.native.precision import compute_dtype
from pytest_charllm.engines.native.step import Step
from pytest_charllm.engines.native.world import World
from pytest_charllm.engines.surroundings import report_of
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.records import Phases, RankReport, RankRequest
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.models import ModelShape

MakeStep = Callable[[RankRequest, ModelShape, int, World, torch.device], TrainingStep]
"""(request, shape, tokens of a sequence, world, device of the weights' generator) -> the model in training."""


def build_step(
    request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
) -> TrainingStep:
    """The native engine's own `MakeStep`."""
    kind: type[PipelineStep | Step] = PipelineStep if request.scenario.layout.pp > 1 else Step
    return kind(request, shape, seq, world, generator_device)


@dataclass(frozen=True)
class Setup:
    """One request on one rank. `seq` in tokens; `import_s`: how long importing torch took."""

    request: RankRequest
    world: World
    shape: ModelShape
    seq: int
    import_s: float
    make_step: MakeStep = build_step

    def build(self, generator_device: torch.device) -> tuple[TrainingStep, RankReport]:
        """The model in training, and a report that says all but what the pass itself will measure."""
        request, world, scenario = self.request, self.world, self.request.scenario
        began_s = time.perf_counter()
        step = self.make_step(request, self.shape, self.seq, world, generator_device)
        dtype = compute_dtype(scenario.options.precision)
        if scenario.layout.ring:
            backend = ring.kernel(world.device)
        else:
            backend = answering_backend(self.shape, scenario.training.microbatch, self.seq, dtype, world.device)
        world.synchronize()
        report = report_of(
            request,
            world.rank,
            world.size,
            tokens_per_step=scenario.global_batch * self.seq,
            parameters=step.parameter_count,
            attention_backend=backend,
            expert_backend=step.expert_backend,
            phases=Phases(import_s=self.import_s, build_s=time.perf_counter() - began_s),
        )
        return step, report


def compile_cache_cold(scenario: Scenario) -> bool | None:
    """Whether the compiler starts with nothing in its cache; None where nothing is compiled. Ask before building."""
    if not scenario.options.compile:
        return None
    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return None if directory is None else not any(Path(directory).glob("*"))
