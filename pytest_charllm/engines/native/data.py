"""Random tokens: drawn for the global batch, so that every layout trains on the same sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_charllm.scenario import Scenario

DISTINCT_STEPS = 8
"""A long window meets the same global batch again after this many steps: enough that nothing can be cached, few
enough that long sequences fit beside the model."""


def global_batch(scenario: Scenario, vocab: int, seq: int, seed: int, step: int) -> Tensor:
    """Token ids (global batch, seq + 1) of one optimizer step, on the CPU: uniform over the vocabulary, never zeros.

    Inputs are the first `seq` columns and targets the last `seq`. Steps repeat after `DISTINCT_STEPS`.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step % DISTINCT_STEPS)
    return torch.randint(vocab, (scenario.global_batch, seq + 1), generator=generator)


class Batches:
    """This data-parallel rank's part of every step, on its device from the start.

    Microbatch `m` of rank `r` is the `(m * dp + r)`-th group of `microbatch` sequences of the global batch.
    """

    def __init__(self, scenario: Scenario, vocab: int, seq: int, seed: int, dp_rank: int, device: torch.device) -> None:
        dp, microbatch, accumulation = scenario.layout.dp, scenario.work.microbatch, scenario.accumulation
        steps = []
        for step in range(DISTINCT_STEPS):
            sequences = global_batch(scenario, vocab, seq, seed, step)
            steps.append(sequences.view(accumulation, dp, microbatch, seq + 1)[:, dp_rank])
        tokens = torch.stack(steps).to(device)
        self._inputs = tokens[..., :-1].contiguous()
        self._targets = tokens[..., 1:].contiguous()

    def microbatch(self, step: int, number: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets), each (microbatch, seq), of the `number`-th microbatch of a step."""
        step %= DISTINCT_STEPS
        return self._inputs[step, number], self._targets[step, number]
