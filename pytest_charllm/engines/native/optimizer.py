"""AdamW with a constant learning rate: what is measured is the step, not the schedule."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
