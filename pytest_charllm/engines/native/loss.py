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
    _, total, target, _ = scores(logits.float(), targets.flatten(), region)
    return (total.log() - target).mean()


def scores(logits: Tensor, targets: Tensor, region: Region) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(logits less the largest of their token, each token's sum of exponentials of those over the vocabulary, its
    target's, the target's column, which may lie outside of this part of the vocabulary).

    Where every rank has its part, one number a token from each decides the scale, and two more are summed. Both sums
    pass their gradient on to every part alike.
    """
    rows = logits.shape[1]
    logits = logits - region.largest(logits.detach().amax(dim=1)).unsqueeze(1)
    column = targets - region.rank * rows
    here = (column >= 0) & (column < rows)
    picked = logits.gather(1, column.clamp(0, rows - 1).unsqueeze(1)).squeeze(1) * here
    total, target = region.sum(torch.stack([logits.exp().sum(dim=1), picked])).unbind()
    return logits, total, target, column
