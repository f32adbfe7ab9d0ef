"""Tensor parallelism: what a block does at the borders of its split layers.

Between those borders every rank works with its heads or its part of the inner width on all tokens. Outside of them,
with sequence parallelism, every rank has its part of the tokens; without, all ranks have all of them and do the same.
All tensors are (tokens, width): a part of the tokens is a piece of memory, and no collective needs a copy.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from pytest_charllm.engines.native.functional import all_gather, all_reduce, reduce_scatter
from pytest_charllm.engines.native.mesh import Axis


class Region:
    """The borders of one tensor-parallel group. At size 1 there are none."""

    def __init__(self, axis: Axis, sequence_parallel: bool = True) -> None:
        self.size, self.rank = axis.size, axis.rank
        self.sequence_parallel = sequence_parallel and axis.size > 1
        self.group = axis.name if axis.size > 1 else ""

    def enter(self, x: Tensor) -> Tensor:
        """(tokens of this rank, width) -> (all tokens, width), whose gradient comes in parts from every rank."""
        if self.size == 1:
            return x
        return _AllGather.apply(x, self.size, self.group) if self.sequence_parallel else _Shared.apply(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """A part of the sum for all tokens -> the sum, for the tokens of this rank."""
        if self.size == 1:
            return x
        return _ReduceScatter.apply(x, self.size, self.group) if self.sequence_parallel else _Sum.apply(x, self.group)

    def own(self, x: Tensor) -> Tensor:
        """The part of all tokens that is this rank's outside."""
        return x.chunk(self.size)[self.rank] if self.sequence_parallel else x

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's part, whose gradient is that of each part."""
        return x if self.size == 1 else _Sum.apply(x, self.group)

    def largest(self, x: Tensor) -> Tensor:
        """Element by element, over the ranks. Has no gradient."""
        return x if self.size == 1 else all_reduce(x.detach(), self.group, "max")


class _Shared(Function):
    """What every rank has whole and reads for its own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_reduce(gradient, ctx.group), None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, group: str) -> Tensor:
        ctx.size, ctx.group = size, group
        return all_gather(x, size, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return reduce_scatter(gradient, ctx.size, ctx.group), None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, group: str) -> Tensor:
        ctx.size, ctx.group = size, group
        return reduce_scatter(x, size, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(gradient, ctx.size, ctx.group), None, None
