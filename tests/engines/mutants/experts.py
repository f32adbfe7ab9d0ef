"""Mixtures of experts: what keeps them balanced, the way there and back, and whose tokens a gradient is of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from pytest_charllm.engines.native import gradients, parallelize
from pytest_charllm.engines.native.experts import Mixture
from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.routing import Routed


def _averaged_over_copies(tensors: list[Tensor], axis: Axis, scale: float) -> None:
    """An expert's gradient divided by how many ranks have the expert, and not by how many had tokens for it."""
    _sum_in_buckets(tensors, axis, 1 / axis.size)


_sum_in_buckets = gradients.sum_in_buckets


def _to_the_next_expert(self: Routed, place: object, chosen: Tensor) -> None:
    _route(self, place, (chosen + 1) % place.experts)  # type: ignore[attr-defined]
    self.chosen = chosen


_route = Routed.__init__


@contextmanager
def _experts_averaged_by_fsdp() -> Iterator[None]:
    """FSDP's own average is over the ranks with the same experts."""
    shard = parallelize.fully_shard

    def sharded(module: torch.nn.Module, **options: object) -> object:
        module = shard(module, **options)
        module.set_gradient_divide_factor = lambda factor: None
        return module

    with patch.object(parallelize, "fully_shard", sharded):
        yield


MUTANTS = {
    "unbalanced": lambda: patch(
        "pytest_charllm.engines.native.model.balance_loss", lambda loads, *_: loads.new_zeros(())
    ),
    "balanced-by-own-tokens": lambda: patch("pytest_charllm.engines.native.experts.all_reduce", lambda x, group: x * 2),
    "unweighted-experts": lambda: patch.object(
        Mixture, "join", lambda self, results, weights: results.mean(dim=1) + 0.0 * weights.sum()
    ),
    "wrong-expert": lambda: patch.object(Routed, "__init__", _to_the_next_expert),
    "experts-averaged-over-copies": lambda: patch.object(gradients, "sum_in_buckets", _averaged_over_copies),
    "experts-averaged-by-fsdp": _experts_averaged_by_fsdp,
}
