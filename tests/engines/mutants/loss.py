"""Chunked cross entropy."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from torch import Tensor

from pytest_charllm.engines.native.chunked_loss import _ChunkedLoss


def _as_saved(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the forward pass are those of a loss that nobody weighted."""
    return (*ctx.saved_tensors, None, None, None)


def _replace(total: Tensor, left: Tensor, right: Tensor) -> None:
    total.copy_(left @ right)


MUTANTS = {
    "unweighted-chunks": lambda: patch.object(_ChunkedLoss, "backward", staticmethod(_as_saved)),
    "last-chunk-alone": lambda: patch("pytest_charllm.engines.native.chunked_loss._add_product", _replace),
}
