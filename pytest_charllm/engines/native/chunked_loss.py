"""Head and cross entropy on a few thousand tokens at a time: the logits of a microbatch never exist at once.

The gradients of hidden states and head are computed with the loss, chunk by chunk, while its logits are there; the
backward pass only scales them. Recomputing every chunk in the backward pass instead would save the memory of the head's
gradient between the passes, and cost its product with the hidden states once more, a third on top of head and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pytest_charllm.engines.native.loss import scores
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.scenario.chunks import chunk_sizes

ChunkLoss = Callable[[Tensor, Tensor, Region], tuple[Tensor, Tensor]]
"""(logits (tokens of a chunk, vocab / tp), their targets, region) -> (sum of losses, its gradient)."""


def chunk_loss(logits: Tensor, targets: Tensor, region: Region) -> tuple[Tensor, Tensor]:
    """The sum of the tokens' losses in fp32, and its gradient in the precision of the logits: probabilities, less one
    at the target. Compiled, nothing of a chunk is in memory in fp32."""
    shifted, total, target, column = scores(logits.float(), targets, region)
    hits = torch.arange(logits.shape[1], device=logits.device) == column.unsqueeze(1)
    gradient = shifted.exp() / total.unsqueeze(1) - hits.float()
    return (total.log() - target).sum(), gradient.to(logits.dtype)


def chunked_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, region: Region, chunk: ChunkLoss) -> Tensor:
    """Mean over all tokens, in fp32, of the cross entropy of hidden states (tokens, width) times the head
    (vocab / tp, width); targets (batch, seq)."""
    return _ChunkedLoss.apply(x, weight, targets.flatten(), region, chunk)


class _ChunkedLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, region: Region, chunk: ChunkLoss) -> Tensor:
        sizes = chunk_sizes(len(x))
        head = weight.to(x.dtype)
        losses, x_gradients = [], []
        # In fp32, whatever the chunks compute in: there may be many of them to sum.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        with torch.autocast(x.device.type, enabled=False):
            for rows, ids in zip(x.split(sizes), targets.split(sizes), strict=True):
                loss, gradient = chunk(rows @ head.t(), ids, region)
                losses.append(loss)
                x_gradients.append(gradient @ head)
                if weight_gradient is not None:
                    _add_product(weight_gradient, gradient.t(), rows)
        scaled = None if weight_gradient is None else weight_gradient.div_(len(x)).to(weight.dtype)
        ctx.save_for_backward(torch.cat(x_gradients).div_(len(x)), scaled)
        return torch.stack(losses).sum() / len(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_gradient, weight_gradient = ctx.saved_tensors
        # Not in place: a schedule may ask for the two at different times, each with a backward pass of its own.
        of_weight = None if weight_gradient is None else _scaled(weight_gradient, gradient)
        return _scaled(x_gradient, gradient), of_weight, None, None, None


def _scaled(x: Tensor, scale: Tensor) -> Tensor:
    """A third in bf16 is off by 0.2 %, alike for every gradient of the model: multiplied in fp32."""
    return (x.float() * scale).to(x.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    else:
        total += left @ right
