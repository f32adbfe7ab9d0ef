"""One optimizer step: accumulate, clip, update. The loss and the gradient norm stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.native.counting import CollectiveCounter
from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.experts import backend_of, balanced, load_of, real_routing
from pytest_charllm.engines.native.parallelize import parallelize
from pytest_charllm.engines.native.weights import count_parameters
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario.models import ModelShape


class Step:
    """A model in training. Calling it does the optimizer step of that index.

    With DDP the gradients are reduced once a step, with the last microbatch; with FSDP after every microbatch, since
    unsharded gradients would need the memory that sharding is there to save.
    """

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        scenario = request.scenario
        parallel = parallelize(scenario, shape, seq, world, request.seed, generator_device, real_routing(request))
        self.model, self.update = parallel.module, parallel.update
        self.batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self.accumulation = scenario.accumulation
        self._routings = {stage.stage.layers: stage.routing for stage in parallel.stages}
        self._shape = shape
        self.expert_backend = backend_of(shape, scenario.options.precision, world.device)
        self.parameter_count = count_parameters(parallel.stages, world)
        self._labels = world.mesh.labels

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

    @property
    def expert_load(self) -> Tensor | None:
        return load_of(self._routings, self._shape)

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        with balanced(self._routings.values()), CollectiveCounter(self._labels) as counter:
            yield counter.collectives

    def _reducing(self, last: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        return nullcontext()


def microbatch_weight(accumulation: int) -> float:
    """The share of one microbatch in its rank's loss: all have the same number of tokens. Ranks are averaged by the
    gradient reduction."""
    return 1.0 / accumulation
