"""torch's functional collectives, which a compiled graph may have in it. `group` is a process group by its name."""

from __future__ import annotations

import torch
from torch import Tensor

_c10d = torch.ops._c10d_functional


def all_reduce(x: Tensor, group: str, op: str = "sum") -> Tensor:
    return _c10d.wait_tensor(_c10d.all_reduce(x.contiguous(), op, group))


def all_gather(x: Tensor, size: int, group: str) -> Tensor:
    """Along dimension 0."""
    return _c10d.wait_tensor(_c10d.all_gather_into_tensor(x.contiguous(), size, group))


def reduce_scatter(x: Tensor, size: int, group: str) -> Tensor:
    """Along dimension 0."""
    return _c10d.wait_tensor(_c10d.reduce_scatter_tensor(x.contiguous(), "sum", size, group))


def all_to_all(
    x: Tensor, size: int, group: str, receive: list[int] | None = None, send: list[int] | None = None
) -> Tensor:
    """The i-th part of dimension 0 goes to rank i, and comes from there; equal parts where no sizes are given."""
    even = [len(x) // size] * size
    return _c10d.wait_tensor(_c10d.all_to_all_single(x.contiguous(), receive or even, send or even, group))
