"""One optimizer step: accumulate, clip, update. The loss and the gradient norm stay on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.native.trained import Trained, microbatch_weight
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import RankRequest
from pytest_charllm.scenario.models import ModelShape


class Step(Trained):
    """A model in training. Calling it does the optimizer step of that index.

    With DDP the gradients are reduced once a step, with the last microbatch; with FSDP after every microbatch, since
    unsharded gradients would need the memory that sharding is there to save.
    """

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        super().__init__(request, shape, seq, world, generator_device)
        self.model = self.parallel.module

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        """(mean loss over the tokens that this rank sees, global gradient norm before clipping). `poison` makes the
        loss NaN."""
        losses = []
        for number in range(self.accumulation):
            inputs, targets = self.batches.microbatch(index, number)
            with self._reducing(last=number == self.accumulation - 1):
                loss = self.model(inputs, targets) * microbatch_weight(self.accumulation)
                if poison:
                    loss = loss * float("nan")
                loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum(), self.update()

    def _reducing(self, last: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()
