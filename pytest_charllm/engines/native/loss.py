"""Next-token cross entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pytest_charllm.engines.native.tensor import Region


def cross_entropy(logits: Tensor, targets: Tensor, region: Region) -> Tensor:
    """Mean over all tokens, in fp32, of logits (tokens, vocab / tp) in any precision; targets (batch, seq).

    Compiled, the fp32 logits never exist in memory: the conversion is fused into both passes. Eager, they do.
    """
    if region.size == 1:
        return F.cross_entropy(logits.float(), targets.flatten())
    return _of_parts(logits.float(), targets.flatten(), region)


def _of_parts(logits: Tensor, targets: Tensor, region: Region) -> Tensor:
    """Where every rank has its part of the vocabulary: one number a token from each rank decides the scale, two more
    the loss. Both sums pass their gradient on to every part alike."""
    rows = logits.shape[1]
    logits = logits - region.largest(logits.detach().amax(dim=1)).unsqueeze(1)
    local = targets - region.rank * rows
    here = (local >= 0) & (local < rows)
    picked = logits.gather(1, local.clamp(0, rows - 1).unsqueeze(1)).squeeze(1) * here
    total, target = region.sum(torch.stack([logits.exp().sum(dim=1), picked])).unbind()
    return (total.log() - target).mean()
