"""One optimizer step of a pipeline. Its microbatches are in flight at the same time, in the order of the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pytest_charllm.engines.native.counting import CollectiveCounter
from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.experts import backend_of, balanced, load_of, real_routing
from pytest_charllm.engines.native.parallelize import parallelize
from pytest_charllm.engines.native.pipeline import build_schedule, build_stages
from pytest_charllm.engines.native.step import microbatch_weight
from pytest_charllm.engines.native.weights import count_parameters
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario import Precision
from pytest_charllm.scenario.models import ModelShape


class PipelineStep:
    """A model in training, of which this rank has one or more stages.

    Gradients are reduced once a step. With FSDP that is all that is communicated for them: weights are gathered with
    the first microbatch and freed after the last one, and gradients of different microbatches add up unsharded.
    """

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        scenario = request.scenario
        layout, mesh = scenario.layout, world.mesh
        parallel = parallelize(scenario, shape, seq, world, request.seed, generator_device, real_routing(request))
        self.update = parallel.update
        self.batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self._routings = {stage.stage.layers: stage.routing for stage in parallel.stages}
        self._shape = shape
        self.expert_backend = backend_of(shape, scenario.options.precision, world.device)
        self.parameter_count = count_parameters(parallel.stages, world)
        self._labels = mesh.labels
        dtype = torch.float32 if scenario.options.precision is Precision.FP32 else torch.bfloat16
        tokens = (scenario.training.microbatch, seq // layout.cp)
        self.stages = build_stages(parallel.stages, layout, mesh, tokens, world.device, dtype)
        self.weight = microbatch_weight(scenario.accumulation)
        self.schedule = build_schedule(self.stages, layout, scenario.accumulation, self._weighted)
        self._share = float(mesh.pp.size)
        self._ahead = [stage.ahead for stage in parallel.stages]
        for ahead in self._ahead:
            ahead.weight = self.weight
        self._nothing = torch.zeros((), device=world.device)
        self._poison = False

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        """(this rank's share of the loss, global gradient norm before clipping).

        The mean of the shares over all ranks is the mean loss over the tokens: every rank says what its stages add to
        it, the last one most or all, as many times over as the pipeline is long. `poison` makes the share NaN.
        """
        self._poison = poison
        inputs, targets = self.batches.step(index)
        for stage in self.stages:
            stage.targets = targets
        first = (inputs.flatten(0, 1),) if any(stage.is_first for stage in self.stages) else ()
        losses: list[Tensor] = []
        self.schedule.step(*first, target=targets.flatten(0, 1), losses=losses, return_outputs=False)
        losses += [value for ahead in self._ahead for value in ahead.take()]
        loss = torch.stack(losses).detach().sum() * self._share if losses else self._nothing.clone()
        return loss * float("nan") if poison else loss, self.update()

    @property
    def expert_load(self) -> Tensor | None:
        return load_of(self._routings, self._shape)

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        with balanced(self._routings.values()), CollectiveCounter(self._labels) as counter:
            yield counter.collectives

    def _weighted(self, loss: Tensor, targets: Tensor) -> Tensor:
        """The part of a microbatch in what is differentiated. The last stage has made its loss of the targets."""
        return loss * (float("nan") if self._poison else self.weight)
