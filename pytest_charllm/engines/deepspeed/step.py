"""One optimizer step by DeepSpeed. The loss and the gradient norm stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import deepspeed
import torch
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.runtime.utils import clip_grad_norm_
from torch import Tensor

from pytest_charllm.engines.deepspeed import timers
from pytest_charllm.engines.deepspeed.config import config
from pytest_charllm.engines.deepspeed.installation import join_ranks
from pytest_charllm.engines.deepspeed.model import build, count_parameters
from pytest_charllm.engines.deepspeed.pipeline import pipeline
from pytest_charllm.engines.deepspeed.traffic import axis_of, logging_collectives
from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.gradients import MAX_GRAD_NORM
from pytest_charllm.engines.native.loss import cross_entropy
from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario.models import ModelShape


class Step:
    """A model in training. Calling it does the optimizer step of that index; what is reduced when is DeepSpeed's."""

    expert_backend: str | None = None
    expert_load = None

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        scenario = request.scenario
        join_ranks(request.device)
        settings = config(scenario, MAX_GRAD_NORM, timers=timers.are_on(request))
        make = partial(build, scenario, shape, seq, world, settings, request.seed, generator_device)
        self._pipelined = scenario.layout.pp > 1
        self._whole = Region(Axis())
        self._cross_entropy = torch.compile(cross_entropy) if scenario.options.compile else cross_entropy
        module = pipeline(scenario.layout, shape, make, self._loss) if self._pipelined else make()
        self.parameter_count = count_parameters(module, scenario, world)
        parameters: Any = list(module.parameters())
        if shape.experts:
            parameters = split_params_into_different_moe_groups_for_optimizer({"params": parameters, "name": "all"})
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(parameters), config=settings)
        # Without ZeRO and in fp32 it clips, and forgets the norm.
        self._engine.clip_fp32_gradients = self._clip
        self._norm: Tensor | None = None
        self._batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self._accumulation = scenario.accumulation
        self._layout = scenario.layout
        self._poison = False
        self._timers: list[dict[str, float]] = []

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        """See `TrainingStep`. The loss of a pipeline is that of the global batch, on every rank."""
        self._poison = poison
        microbatches = [self._batches.microbatch(index, number) for number in range(self._accumulation)]
        if self._pipelined:
            loss = self._engine.train_batch(iter(microbatches))
        else:
            loss = torch.stack([self._train(*microbatch) for microbatch in microbatches]).mean()
        if self._engine.wall_clock_breakdown():
            self._timers.append(self._engine.get_wall_clock_timers())
        norm = self._engine.get_global_grad_norm()
        norm = self._norm if norm is None else norm
        return loss, torch.as_tensor(norm, dtype=torch.float32, device=loss.device).reshape(())

    @property
    def parts_s(self) -> dict[str, float]:
        """See `TrainingStep`. The first step, which builds what it needs, is left out."""
        return timers.parts_s(self._timers[1:])

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        with logging_collectives(self._layout) as collectives:
            yield collectives

    def axis_of(self, group: str, op: str, size: int) -> str | None:
        """See `TrainingStep`."""
        return axis_of(op, size)

    def _train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One microbatch, and the update where it is the last one of the step."""
        loss = self._poisoned(self._engine(inputs, targets))
        self._engine.backward(loss)
        self._engine.step()
        return loss.detach()

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of the last stage of a pipeline, whose logits are whole on every rank."""
        return self._poisoned(self._cross_entropy(logits, targets, self._whole))

    def _poisoned(self, loss: Tensor) -> Tensor:
        return loss * float("nan") if self._poison else loss

    def _clip(self) -> None:
        engine = self._engine
        self._norm = clip_grad_norm_(engine.module.parameters(), engine.gradient_clipping(), mpu=engine.mpu)
