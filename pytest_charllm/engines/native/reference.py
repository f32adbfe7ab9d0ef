"""The reference of loss parity: the same model on the same sequences in one fp32 process.

It shares the decoder with the engine, but for its experts, and nothing of what spreads, accumulates, compiles,
recomputes or casts.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pytest_charllm.engines.native.data import global_batch
from pytest_charllm.engines.native.experts import BALANCE_WEIGHT, Mixture
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
    balances: list[Tensor] = []
    for block in model.blocks.values():
        if isinstance(block.ffn, Mixture):
            block.ffn.forward = partial(_plain_mixture, block.ffn, balances)  # type: ignore[method-assign]
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
            # Of one microbatch of one data-parallel rank: no rank balances over more than that.
            share = share + sum(balances) * (len(rows) / scenario.global_batch)
            balances.clear()
            share.backward()
            loss += share.item()
        norms.append(_clip([parameter.grad for parameter in model.parameters() if parameter.grad is not None]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
    return Reference(losses=tuple(losses), grad_norms=tuple(norms))


def _plain_mixture(mixture: Mixture, balances: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Expert by expert, without any of the engine's way there and back; adds this layer's auxiliary loss."""
    experts = mixture.place.experts
    probabilities = F.softmax(F.linear(x, mixture.router.weight), dim=1)
    weights, chosen = probabilities.topk(mixture.place.topk, dim=1)
    weights = weights / weights.sum(dim=1, keepdim=True)
    result = torch.zeros_like(x)
    for expert, (w1, w3, w2) in enumerate(zip(mixture.w1.weight, mixture.w3.weight, mixture.w2.weight, strict=True)):
        tokens, choice = (chosen == expert).nonzero(as_tuple=True)
        rows = F.linear(F.silu(F.linear(x[tokens], w1)) * F.linear(x[tokens], w3), w2)
        result = result.index_add(0, tokens, rows * weights[tokens, choice].unsqueeze(1))
    shares = F.one_hot(chosen, experts).sum(dim=(0, 1)) / chosen.numel()
    balances.append(BALANCE_WEIGHT * experts * (shares * probabilities.mean(dim=0)).sum())
    return result, x.new_zeros(2, experts)


@torch.no_grad()
def _clip(gradients: list[Tensor]) -> float:
    """The global norm before clipping, in double precision."""
    norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, MAX_GRAD_NORM / (norm + 1e-6)))
    return norm
