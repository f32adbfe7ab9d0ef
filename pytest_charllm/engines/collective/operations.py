"""The operations: what each rank puts in, the call, and what has to come out of it, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario import CollectiveOp

ELEMENT_BYTES = 4
"""fp32: sums of small whole numbers are exact in it, on every backend."""
_PATTERN = 127
"""Input element i of a rank is i modulo this, plus the rank: no two parts of a message are alike for long."""


@dataclass(frozen=True)
class Operation:
    """One collective on buffers of its own. `bytes` is the size of the full tensor, the sum of all ranks' parts."""

    bytes: int
    call: Callable[[], Any]
    result: Tensor
    expected: Callable[[], Tensor]
    """What `result` holds after the first call."""

    def wrong(self) -> int:
        """How many elements are not what they have to be."""
        return int((self.result != self.expected()).sum().item())


def operation(op: CollectiveOp, size: int, world: World) -> Operation:
    """Buffers of `size` bytes, rounded up to equal parts. Nothing is called yet."""
    ranks, rank = world.size, world.rank
    part = -(-size // (ELEMENT_BYTES * ranks))
    count = part * ranks
    index = torch.arange(count, device=world.device, dtype=torch.int32).remainder_(_PATTERN)
    pattern = index.to(torch.float32)
    del index
    own = slice(rank * part, (rank + 1) * part)
    owner = torch.arange(ranks, device=world.device, dtype=torch.float32).repeat_interleave(part)
    full = pattern + rank

    def summed() -> Tensor:
        return ranks * pattern + ranks * (ranks - 1) / 2

    def made(call: Callable[[], Any], result: Tensor, expected: Callable[[], Tensor]) -> Operation:
        return Operation(count * ELEMENT_BYTES, call, result, expected)

    if op is CollectiveOp.ALL_REDUCE:
        return made(lambda: dist.all_reduce(full), full, summed)
    if op is CollectiveOp.ALL_GATHER:
        shard, gathered = full[own].clone(), torch.empty_like(full)
        return made(lambda: dist.all_gather_into_tensor(gathered, shard), gathered, lambda: pattern + owner)
    if op is CollectiveOp.REDUCE_SCATTER:
        reduced = torch.empty_like(full[own])
        return made(lambda: dist.reduce_scatter_tensor(reduced, full), reduced, lambda: summed()[own])
    arrived = torch.empty_like(full)
    if op is CollectiveOp.ALL_TO_ALL:
        exchanged = lambda: pattern[own].repeat(ranks) + owner  # noqa: E731
        return made(lambda: dist.all_to_all_single(arrived, full), arrived, exchanged)
    before, after = (rank - 1) % ranks, (rank + 1) % ranks

    def exchange() -> None:
        pair = [dist.P2POp(dist.isend, full, after), dist.P2POp(dist.irecv, arrived, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return made(exchange, arrived, lambda: pattern + before)
