"""Rank program of the tests of context parallelism: attention over parts of a sequence against all of it at once.

``python context_program.py FOLDER`` with RANK and WORLD_SIZE set; fails, saying how, where a result or gradient of this
rank's part differs. Half of the world and all of it attend, in both ways.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_charllm.engines.native.attention import attend
from pytest_charllm.engines.native.context import Context
from pytest_charllm.engines.native.counting import CollectiveCounter, counting_flops
from pytest_charllm.engines.native.mesh import Axis


def axes(rank: int, world: int) -> Iterator[Axis]:
    for size in (world // 2, world):
        groups = [list(range(first, first + size)) for first in range(0, world, size)]
        group, _ = dist.new_subgroups_by_enumeration(groups)
        yield Axis(size, rank % size, group=group)


def check(context: Context, heads: int, kv_heads: int) -> None:
    batch, tokens, head_dim = 2, 8 * context.size, 16
    generator = torch.Generator().manual_seed(7)
    inputs = [
        torch.randn(batch, tokens, number, head_dim, generator=generator) for number in (heads, kv_heads, kv_heads)
    ]
    upstream = torch.randn(batch, tokens, heads, head_dim, generator=generator)
    whole = [x.clone().requires_grad_() for x in inputs]
    expected = attend(*whole)
    expected.backward(upstream)
    parts = [context.part(x, dim=1).clone().requires_grad_() for x in inputs]
    with counting_flops() as flops, CollectiveCounter({}):
        out = context.attend(*parts)
        out.backward(context.part(upstream, dim=1))
    torch.testing.assert_close(out, context.part(expected.detach(), dim=1))
    for part, full in zip(parts, whole, strict=True):
        torch.testing.assert_close(part.grad, context.part(full.grad, dim=1))
    share = (context.size + 1) / (2 * context.size) if context.ring else 1.0
    assert flops() == 7 * 2 * batch * heads * head_dim * tokens**2 * share / context.size


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(110, exit=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=30))
    for axis in axes(rank, world):
        for heads, kv_heads in ((4, 4), (8, 4)):
            check(Context(axis, ring=True), heads, kv_heads)
            check(Context(axis), heads, kv_heads)
        waiting = Context(axis, ring=True)
        waiting.overlap = False
        check(waiting, 3, 1)
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
