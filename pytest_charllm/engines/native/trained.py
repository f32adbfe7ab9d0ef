"""A model in training on this rank, and what is told of it; the kinds of step differ in the order of their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_charllm.engines.native.counting import CollectiveCounter
from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.experts import backend_of, balanced, load_of, real_routing
from pytest_charllm.engines.native.parallelize import parallelize
from pytest_charllm.engines.native.weights import count_parameters
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario.models import ModelShape


class Trained:
    """All of a `TrainingStep` but the step. `parallel` is what this rank trains, `batches` what on."""

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        scenario = request.scenario
        self.parallel = parallelize(scenario, shape, seq, world, request.seed, generator_device, real_routing(request))
        self.update = self.parallel.update
        self.batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self.accumulation = scenario.accumulation
        self.parameter_count = count_parameters(self.parallel.stages, world)
        self.expert_backend = backend_of(shape, scenario.options.precision, world.device)
        self._routings = {stage.stage.layers: stage.routing for stage in self.parallel.stages}
        self._shape = shape
        self._labels = world.mesh.labels

    @property
    def expert_load(self) -> Tensor | None:
        return load_of(self._routings, self._shape)

    @property
    def parts_s(self) -> dict[str, float]:
        """Torch times nothing by itself."""
        return {}

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        with balanced(self._routings.values()), CollectiveCounter(self._labels) as counter:
            yield counter.collectives

    def axis_of(self, group: str, op: str, size: int) -> str | None:
        """See `TrainingStep`. An axis has a group of its own, also where it is all of the world."""
        if group in self._labels:
            return self._labels[group]
        world = dist.group.WORLD
        return "world" if world is not None and group == world.group_name else None


def microbatch_weight(accumulation: int) -> float:
    """The share of one microbatch in its rank's loss: all have the same number of tokens. Ranks are averaged by the
    gradient reduction."""
    return 1.0 / accumulation
