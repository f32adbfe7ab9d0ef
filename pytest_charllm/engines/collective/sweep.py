"""The sweep: each size is checked once, then timed in batches of calls that follow each other without a pause."""

from __future__ import annotations

from itertools import pairwise

from pytest_charllm.engines.collective.operations import operation
from pytest_charllm.engines.native.clock import mark_type, no_garbage_collection
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import MessageTimes
from pytest_charllm.scenario import CollectiveOp

BATCHES = 20
"""Times a size has; their median is its time."""
WARMUP_CALLS = 5
_BATCH_BYTES = 64 << 20
_BATCH_CALLS = 20
"""Calls of one batch at most: reading a clock between them would cost as much as a small call takes."""


def calls_of(size: int) -> int:
    """Calls of one batch: the same on every rank, so it follows from the size alone."""
    return max(1, min(_BATCH_CALLS, _BATCH_BYTES // size))


def times_of(op: CollectiveOp, size: int, world: World) -> MessageTimes:
    """One size's times on this rank. The first call's result is checked, outside of what is timed."""
    made, mark, calls = operation(op, size, world), mark_type(world.device), calls_of(size)
    made.call()
    world.synchronize()
    wrong = made.wrong()
    if op is CollectiveOp.ALL_REDUCE:
        made.result.zero_()  # the sum of sums would soon be no number
    for _ in range(WARMUP_CALLS):
        made.call()
    with no_garbage_collection():
        world.barrier()
        marks = [mark()]
        for _ in range(BATCHES):
            for _ in range(calls):
                made.call()
            marks.append(mark())
        world.synchronize()
    wall_s = tuple(before.until(after).wall_s / calls for before, after in pairwise(marks))
    return MessageTimes(
        size=size, bytes=made.bytes, calls=calls, wall_s=wall_s, wrong=wrong, untimed_calls=1 + WARMUP_CALLS
    )
