"""The reference of loss parity: the same model on the same sequences in one fp32 process.

It shares the decoder with the engine, and nothing of what spreads, accumulates, compiles, recomputes or casts.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pytest_charllm.engines.native.data import global_batch
from pytest_charllm.engines.native.gradients import MAX_GRAD_NORM
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.records import RankRequest, Reference
from pytest_charllm.scenario.models import ModelShape


def train_reference(request: RankRequest, shape: ModelShape, seq: int, device: torch.device) -> Reference:
    """Losses and gradient norms of the request's diagnostic steps. Runs on one rank, in its own device's memory."""
    scenario = request.scenario
    with torch.device("meta"):
        model = Decoder(shape)
    model.routing.real = True
    initialize(model, seq, device, request.seed, generator_device=torch.device("cpu"))
    optimizer = adamw(model.parameters())
    losses, norms = [], []
    for step in range(request.diagnostic_steps):
        sequences = global_batch(scenario, shape.vocab, seq, request.seed, step).to(device)
        tokens = scenario.global_batch * seq
        loss = 0.0
        for rows in sequences.split(scenario.training.microbatch):
            logits = model(rows[:, :-1])
            share = F.cross_entropy(logits, rows[:, 1:].flatten(), reduction="sum") / tokens
            if model.balance is not None:
                # Of one microbatch of one data-parallel rank: no rank balances over more than that.
                share = share + model.balance * (len(rows) / scenario.global_batch)
            share.backward()
            loss += share.item()
        norms.append(_clip([parameter.grad for parameter in model.parameters() if parameter.grad is not None]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
    return Reference(losses=tuple(losses), grad_norms=tuple(norms))


@torch.no_grad()
def _clip(gradients: list[Tensor]) -> float:
    """The global norm before clipping, in double precision."""
    norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, MAX_GRAD_NORM / (norm + 1e-6)))
    return norm
