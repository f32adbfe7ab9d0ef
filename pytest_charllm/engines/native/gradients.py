"""What makes every rank's gradients those of the global batch, where no wrapper does it, and their global norm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_charllm.engines.native.mesh import Axis, Mesh
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.tied import HEAD, is_tied, sum_tied
from pytest_charllm.engines.native.weights import copies
from pytest_charllm.scenario.placement import is_summed_over_tp, placement
from pytest_charllm.scenario.traffic.calls import OWN_BUCKET_BYTES

MAX_GRAD_NORM = 1.0

T = TypeVar("T", bound=Tensor)


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of a gradient that is there."""
    gradient = parameter.grad
    assert gradient is not None, "every parameter takes part in every step"
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


class Gradients:
    """The gradients of what this rank trains, in all of its stages.

    `reduce` is called once a step, after the last backward pass; what DDP or FSDP averages is averaged already.
    """

    def __init__(self, stages: Sequence[Decoder], mesh: Mesh, *, averaged: bool) -> None:
        named = [
            (stage, name, each) for stage in stages for name, each in stage.named_parameters() if each.requires_grad
        ]
        self.parameters = [parameter for _, _, parameter in named]
        self._ends = mesh.ends
        self._tied = {name: each for stage, name, each in named if is_tied(stage, name)}
        self._sums: list[tuple[Axis, float, list[nn.Parameter]]] = []
        self._copies: dict[int, list[nn.Parameter]] = defaultdict(list)
        sharded = any(isinstance(parameter, DTensor) for parameter in self.parameters)
        self._spread = sharded or mesh.tp.size > 1 or mesh.pp.size > 1 or mesh.ep.size > 1
        partial: list[nn.Parameter] = []
        experts: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for stage, name, parameter in named:
            shape = stage.shape
            expert = placement(shape, name).expert
            if is_summed_over_tp(shape, name, stage.region.sequence_parallel):
                partial.append(parameter)
            apart = expert and mesh.ep.size > 1
            (experts if apart else others).append(parameter)
            if parameter is self._tied.get(HEAD):
                continue
            shard = mesh.expert_batch if apart else mesh.shard
            same = copies(shape, name, mesh) // (shard.size if isinstance(parameter, DTensor) else 1)
            self._copies[same if self._spread else 1].append(parameter)
        if partial and mesh.tp.size > 1:
            self._sums.append((mesh.tp, 1.0, partial))
        if not averaged and mesh.batch.size > 1:
            self._sums.append((mesh.batch, 1 / mesh.batch.size, others))
        if experts and not sharded:
            # Tokens of the whole batch have reached some copy of an expert, however few copies there are.
            self._sums.append((mesh.expert_batch, 1 / mesh.batch.size, experts))

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum over tp what each rank has of its own tokens only, average over the batch, sum what is tied."""
        for axis, scale, parameters in self._sums:
            sum_in_buckets([local_gradient(parameter) for parameter in parameters], axis, scale)
        sum_tied({name: local_gradient(parameter) for name, parameter in self._tied.items()}, self._ends)

    @torch.no_grad()
    def norm(self, gradient_of: Callable[[nn.Parameter], Tensor] = local_gradient) -> Tensor:
        """The global norm. Where ranks hold different parts of the gradients it costs one all-reduce of a scalar.
        Nothing here waits for the device."""
        squares = [
            square_sum([gradient_of(parameter) for parameter in parameters]) / same
            for same, parameters in self._copies.items()
        ]
        squared = torch.stack(squares).sum().float()
        if self._spread:
            dist.all_reduce(squared)
        return squared.sqrt()


def square_sum(gradients: list[Tensor]) -> Tensor:
    """The sum of all squares, in double precision: in single, a large matrix alone loses the fifth digit."""
    by_dtype: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for gradient in gradients:  # one kernel for many only where all are of one precision
        by_dtype[gradient.dtype].append(gradient)
    norms = [norm for each in by_dtype.values() for norm in torch._foreach_norm(each, 2, torch.float64)]
    return torch.stack(norms).square().sum()


def clip_coefficient(norm: Tensor) -> Tensor:
    """What to scale gradients of this global norm by for it to be at most `MAX_GRAD_NORM`. Both stay on the device."""
    return (MAX_GRAD_NORM / (norm + 1e-6)).clamp(max=1.0)


def sum_in_buckets(gradients: list[Tensor], axis: Axis, scale: float) -> None:
    """Sum over the ranks of an axis and scale, in place, a bucket at a time."""
    if axis.size == 1:
        torch._foreach_mul_(gradients, scale)
        return
    for bucket in buckets(gradients, OWN_BUCKET_BYTES):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=axis.group)
        if scale != 1.0:
            flat.mul_(scale)
        for gradient, piece in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            gradient.copy_(piece.view_as(gradient))


def buckets(tensors: Iterable[T], limit_bytes: int) -> Iterable[list[T]]:
    """Consecutive tensors until a bucket has reached its limit, the last one included."""
    bucket: list[T] = []
    filled = 0
    for tensor in tensors:
        bucket.append(tensor)
        filled += tensor.numel() * tensor.element_size()
        if filled >= limit_bytes:
            yield bucket
            bucket, filled = [], 0
    if bucket:
        yield bucket
