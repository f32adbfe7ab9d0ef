"""One optimizer step of a pipeline. Its microbatches are in flight at the same time, in the order of the schedule."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_charllm.engines.native.pipeline import build_schedule, build_stages
from pytest_charllm.engines.native.precision import compute_dtype
from pytest_charllm.engines.native.trained import Trained, microbatch_weight
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import RankRequest
from pytest_charllm.scenario.models import ModelShape


class PipelineStep(Trained):
    """A model in training, of which this rank has one or more stages.

    Gradients are reduced once a step. With FSDP that is all that is communicated for them: weights are gathered with
    the first microbatch and freed after the last one, and gradients of different microbatches add up unsharded.
    """

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        super().__init__(request, shape, seq, world, generator_device)
        scenario = request.scenario
        layout, mesh, decoders = scenario.layout, world.mesh, self.parallel.stages
        dtype = compute_dtype(scenario.options.precision)
        tokens = (scenario.training.microbatch, seq // layout.cp)
        self.stages = build_stages(decoders, layout, mesh, tokens, world.device, dtype)
        self.weight = microbatch_weight(self.accumulation)
        self.schedule = build_schedule(self.stages, layout, self.accumulation, self._weighted)
        self._share = float(mesh.pp.size)
        self._ahead = [decoder.ahead for decoder in decoders]
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

    def _weighted(self, loss: Tensor, targets: Tensor) -> Tensor:
        """The part of a microbatch in what is differentiated. The last stage has made its loss of the targets."""
        return loss * (float("nan") if self._poison else self.weight)
