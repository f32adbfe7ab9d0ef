"""What DeepSpeed's own log of collectives says of one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deepspeed import comm
from deepspeed.comm.comm import comms_logger

from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Collective
from pytest_charllm.scenario import Layout

_SCALARS_BYTES = 8
"""A norm in double precision, or the two losses of a pipeline."""

_SHARDED = ("all_gather_into_tensor", "all_gather")
"""Logged by the size of one rank's shard; everything else by that of the whole tensor."""

_OPS = {
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}
_AXES = {"all-to-all": "ep", "send": "pp", "recv": "pp"}

Log = Mapping[str, Mapping[int, list[Any]]]
"""Operation -> bytes of a message -> [count, ...], as DeepSpeed keeps it."""


@contextmanager
def logging_collectives(layout: Layout) -> Iterator[Callable[[], tuple[Collective, ...]]]:
    """Yields what tells the collectives that were called in the context. It makes DeepSpeed wait for each of them."""
    comms_logger.reset_data()
    comm.configure(enabled=True, prof_all=True, verbose=False)
    try:
        yield lambda: collectives(comms_logger.get_raw_data(), layout)
    finally:
        comm.configure(enabled=False)


def collectives(log: Log, layout: Layout) -> tuple[Collective, ...]:
    """One entry an axis and operation, sorted. The log names no groups, so the operation says which axis it was."""
    count: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for name, messages in log.items():
        if name == "barrier":
            continue
        if name not in _OPS:
            raise HarnessError(f"DeepSpeed's log has {name}, which this version does not know how to count")
        for message, (times, *_) in messages.items():
            size = message * (layout.dp if name in _SHARDED else 1)
            op = _OPS[name]
            axis = axis_of(op, size)
            count[axis, op] += times
            sizes[axis, op] += times * size
    return tuple(
        Collective(op=op, axis=axis, count=count[axis, op], bytes=sizes[axis, op]) for axis, op in sorted(count)
    )


def axis_of(op: str, size: int) -> str:
    """By operation and bytes of the full tensor alone: DeepSpeed's groups say nothing of what they are for."""
    return "world" if size <= _SCALARS_BYTES else _AXES.get(op, "dp")
