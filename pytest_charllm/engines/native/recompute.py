"""What selective recompute keeps: the results of matrix products and attention; all else is cheap to redo."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pytest_charllm.engines.native import ring

aten = torch.ops.aten

_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._grouped_mm.default,
    aten._scaled_mm.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    ring.FORWARD,
}


def saving_products() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Contexts for `checkpoint(context_fn=...)` of one forward and its recomputation."""
    return create_selective_checkpoint_contexts(_policy)


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE
