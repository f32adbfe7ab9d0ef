"""The distributed optimizer: ranks that hold the same weights share the optimizer's state and its work.

Weights and gradients lie in flat buckets. A bucket's gradients are summed into the piece that a rank updates, and the
updated pieces are gathered again. With overlap a bucket is reduced as soon as the last backward pass has filled it, and
gathered while the next forward pass does not need it yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_charllm.engines.native.gradients import buckets, clip_coefficient, square_sum
from pytest_charllm.engines.native.mesh import Axis, Mesh
from pytest_charllm.engines.native.model import Block, Decoder
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.tied import HEAD, is_tied, sum_tied
from pytest_charllm.engines.native.weights import copies
from pytest_charllm.scenario.placement import is_summed_over_tp, placement
from pytest_charllm.scenario.traffic.calls import OPTIMIZER_BUCKET_BYTES


class Kind(NamedTuple):
    """What parameters of one bucket have in common: the ranks that share them, how many ranks will hold the same piece
    of a gradient once it is shared out, and whether each has it from its own tokens only. One that is tied across a
    pipeline, by its name, is alone in its bucket, so that both ends cut it alike."""

    axis: Axis
    copies: int
    partial: bool
    tied: str = ""


class ShardedUpdate:
    """`accumulation`: how many backward passes fill the gradients of a step."""

    def __init__(self, models: Sequence[Decoder], mesh: Mesh, accumulation: int, *, overlap: bool) -> None:
        self._mesh, self._overlap = mesh, overlap
        self._buckets = list(_fill_buckets(models, mesh, accumulation, overlap))
        self._optimizer = adamw([bucket.piece for bucket in self._buckets])
        if overlap:
            for model in models:
                self._wait_where_needed(model)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        for bucket in self._buckets:
            bucket.finish_reducing()
        if partial := [bucket.reduced for bucket in self._buckets if bucket.kind.partial]:
            flat = torch.cat(partial)
            dist.all_reduce(flat, group=self._mesh.tp.group)
            torch._foreach_copy_(partial, flat.split([piece.numel() for piece in partial]))
        sum_tied({bucket.kind.tied: bucket.reduced for bucket in self._buckets if bucket.kind.tied}, self._mesh.ends)
        norm = self._clip()
        self._optimizer.step()
        # In the order in which the next forward pass needs them.
        for bucket in reversed(self._buckets):
            bucket.start_gathering()
            if not self._overlap:
                bucket.finish_gathering()
        return norm

    def _clip(self) -> Tensor:
        squares = [
            square_sum([bucket.reduced]) / bucket.kind.copies for bucket in self._buckets if bucket.kind.tied != HEAD
        ]
        squared = torch.stack(squares).sum().float()
        dist.all_reduce(squared)
        norm = squared.sqrt()
        torch._foreach_mul_([bucket.reduced for bucket in self._buckets], clip_coefficient(norm))
        return norm

    def _wait_where_needed(self, model: Decoder) -> None:
        """A block waits for the buckets with its own parameters, the decoder for those with all others."""
        within: dict[int, nn.Module] = {}
        for module in model.modules():
            if isinstance(module, Block):
                within |= {id(parameter): module for parameter in module.parameters()}
        needed: dict[nn.Module, list[Bucket]] = defaultdict(list)
        for bucket in self._buckets:
            for module in {within.get(id(parameter), model) for parameter in bucket.parameters}:
                needed[module].append(bucket)
        for module, theirs in needed.items():
            module.register_forward_pre_hook(lambda module, args, theirs=theirs: _finish_gathering(theirs))


class Bucket:
    """`piece` is this rank's part of the weights, `reduced` its gradient: the mean over the ranks of the axis."""

    def __init__(self, kind: Kind, parameters: list[nn.Parameter], batch: int, passes: int, overlap: bool) -> None:
        self.kind, self.parameters = kind, parameters
        self._scale = 1 / batch
        self._expected = self._missing = passes * len(parameters)
        self._reducing: dist.Work | None = None
        self._gathering: dist.Work | None = None
        size, rank = kind.axis.size, kind.axis.rank
        elements = sum(parameter.numel() for parameter in parameters)
        rows = -(-elements // size)
        device = parameters[0].device
        self._weights, self._gradients = (torch.zeros(rows * size, device=device) for _ in range(2))
        at = 0
        for parameter in parameters:
            weights, gradients = (
                flat[at : at + parameter.numel()].view_as(parameter) for flat in (self._weights, self._gradients)
            )
            weights.copy_(parameter.data)
            parameter.data, parameter.grad = weights, gradients
            if overlap:
                parameter.register_post_accumulate_grad_hook(self._count)
            at += parameter.numel()
        self.piece = nn.Parameter(self._weights[rank * rows : (rank + 1) * rows])
        # Where no other rank shares these weights, as with experts that are all apart, the piece is the whole.
        self.reduced = torch.empty_like(self.piece) if size > 1 else self._gradients
        self.piece.grad = self.reduced

    def _count(self, parameter: Tensor) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._start_reducing()

    def _start_reducing(self) -> None:
        if self.kind.axis.size > 1:
            group = self.kind.axis.group
            self._reducing = dist.reduce_scatter_tensor(self.reduced, self._gradients, group=group, async_op=True)

    def finish_reducing(self) -> None:
        if self._reducing is None:
            self._start_reducing()
        if self._reducing is not None:
            self._reducing.wait()
        self._reducing, self._missing = None, self._expected
        self.reduced.mul_(self._scale)

    def start_gathering(self) -> None:
        """Once the piece is updated: nothing reads the gradients any more."""
        self._gradients.zero_()
        if self.kind.axis.size > 1:
            group = self.kind.axis.group
            self._gathering = dist.all_gather_into_tensor(self._weights, self.piece.data, group=group, async_op=True)

    def finish_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None


def _finish_gathering(needed: Iterable[Bucket]) -> None:
    for bucket in needed:
        bucket.finish_gathering()


def _fill_buckets(models: Sequence[Decoder], mesh: Mesh, passes: int, overlap: bool) -> Iterable[Bucket]:
    """In the order in which a backward pass fills them: the reverse of use."""
    kinds: dict[Kind, list[nn.Parameter]] = defaultdict(list)
    for model in reversed(models):
        trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        for name, parameter in reversed(trained):
            axis = mesh.expert_batch if placement(model.shape, name).expert else mesh.batch
            partial = mesh.tp.size > 1 and is_summed_over_tp(model.shape, name, model.region.sequence_parallel)
            tied = name if is_tied(model, name) else ""
            kinds[Kind(axis, copies(model.shape, name, mesh) // axis.size, partial, tied)].append(parameter)
    for kind, parameters in kinds.items():
        for bucket in buckets(parameters, OPTIMIZER_BUCKET_BYTES):
            yield Bucket(kind, bucket, mesh.batch.size, passes, overlap)
