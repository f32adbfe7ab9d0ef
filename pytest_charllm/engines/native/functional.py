"""torch's functional collectives, which a compiled graph may have in it. `group` is a process group by its name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

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


def exchange(
    x: Tensor, size: int, group: str, receive: list[int] | None = None, send: list[int] | None = None
) -> Tensor:
    """`all_to_all` with a gradient: that of what was sent comes back along the same way."""
    return _Exchange.apply(x, size, group, receive, send)


class _Exchange(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: int, group: str, receive: list[int] | None, send: list[int] | None
    ) -> Tensor:
        ctx.way_back = size, group, send, receive
        return all_to_all(x, size, group, receive, send)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return all_to_all(gradient, *ctx.way_back), None, None, None, None
