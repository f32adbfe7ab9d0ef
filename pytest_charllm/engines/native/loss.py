"""Next-token cross entropy."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in fp32, of logits (batch, seq, vocab) in any precision.

    Compiled, the fp32 logits never exist in memory: the conversion is fused into both passes. Eager, they do.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
