"""Random tokens: drawn for the global batch, so that every layout trains on the same sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_charllm.engines.native.context import Context
from pytest_charllm.engines.native.weights import generator
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario import Scenario

DISTINCT_STEPS = 8
"""A long window meets the same global batch again after this many steps: enough that nothing can be cached, few
enough that long sequences fit beside the model."""


def global_batch(scenario: Scenario, vocab: int, seq: int, seed: int, step: int) -> Tensor:
    """Token ids (global batch, seq + 1) of one optimizer step, on the CPU: uniform over the vocabulary, never zeros.

    Inputs are the first `seq` columns and targets the last `seq`. Steps repeat after `DISTINCT_STEPS`.
    """
    drawn = generator(seed, step % DISTINCT_STEPS, torch.device("cpu"))
    return torch.randint(vocab, (scenario.global_batch, seq + 1), generator=drawn)


class Batches:
    """What this rank sees of every step, on its device from the start.

    Microbatch `m` of data-parallel rank `r` is the `(m * dp + r)`-th group of `microbatch` sequences of the global
    batch. Context-parallel ranks have the parts of every sequence that `Context.part` gives them.
    """

    def __init__(self, scenario: Scenario, vocab: int, seq: int, seed: int, world: World) -> None:
        dp, microbatch, accumulation = scenario.layout.dp, scenario.training.microbatch, scenario.accumulation
        mesh = world.mesh
        steps = []
        for step in range(DISTINCT_STEPS):
            sequences = global_batch(scenario, vocab, seq, seed, step)
            steps.append(sequences.view(accumulation, dp, microbatch, seq + 1)[:, mesh.dp.rank])
        tokens = torch.stack(steps)
        context = Context(mesh.cp, scenario.layout.ring)
        self._inputs = context.part(tokens[..., :-1], dim=-1).contiguous().to(world.device)
        self._targets = context.part(tokens[..., 1:], dim=-1).contiguous().to(world.device)

    def microbatch(self, step: int, number: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets), each (microbatch, seq / cp), of the `number`-th microbatch of a step."""
        inputs, targets = self.step(step)
        return inputs[number], targets[number]

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets), each (microbatches, microbatch, seq / cp)."""
        return self._inputs[step % DISTINCT_STEPS], self._targets[step % DISTINCT_STEPS]
