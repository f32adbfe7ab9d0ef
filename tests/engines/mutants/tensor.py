"""Tensor parallelism: a collective lost at a border, a gradient that stays a part."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import Tensor

from pytest_charllm.engines.native.functional import all_reduce
from pytest_charllm.engines.native.gradients import Gradients
from pytest_charllm.engines.native.tensor import Region

MUTANTS = {
    "partial-sums": lambda: patch.object(Region, "leave", lambda self, x: self.own(x) if self.size > 1 else x),
    "unsummed-partial-gradients": lambda: patch.object(Gradients, "reduce", lambda self: None),
    "whole-counted-on-every-rank": lambda: patch(
        "pytest_charllm.engines.native.gradients.copies", lambda shape, name, mesh: 1
    ),
    "unshared-gradient": lambda: patch("pytest_charllm.engines.native.tensor.all_reduce", _only_forward_sums),
}


def _only_forward_sums(x: Tensor, group: str, op: str = "sum") -> Tensor:
    """The all-reduce at the entry of a region belongs to the backward pass, where gradients are no leaves' inputs."""
    return x if torch._C._current_graph_task_id() != -1 else all_reduce(x, group, op)
