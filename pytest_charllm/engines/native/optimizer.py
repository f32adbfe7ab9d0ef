"""AdamW, and clipping by the global gradient norm. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

MAX_GRAD_NORM = 1.0


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """Fused AdamW with a constant learning rate: what is measured is the step, not the schedule."""
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


@torch.no_grad()
def clip_gradients(parameters: list[nn.Parameter]) -> Tensor:
    """Scale all gradients to a global norm of at most 1 and return the norm before that, as a scalar on the device.

    Shards of one gradient lie on different ranks, so with sharded parameters the norm costs one all-reduce of a
    scalar; whole gradients are the same on every rank already.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    norm = torch.nn.utils.get_total_norm(local)
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        squared = norm.square()
        dist.all_reduce(squared)
        norm = squared.sqrt()
    torch._foreach_mul_(local, (MAX_GRAD_NORM / (norm + 1e-6)).clamp(max=1.0))
    return norm
