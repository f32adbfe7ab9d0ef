"""How the streams of DeepSpeed's ZeRO 1 and 2 depend on each other: as they did before a repair, or as they will after.

Of DeepSpeed 0.19.8. Gradients are copied into one of two buffers, and that is reduced in a stream of its own beside the
backward pass; a gradient larger than a buffer is reduced where it is. Before each reduction the backward pass waits for
all that was reduced so far (DeepSpeed#5606), which is more than the memory asks for (#8364): so it is in 0.19.8 that
the backward pass is held up, and `repaired` that lets it go. Each context yields a counter of what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch


class Acts:
    """How often a wait or a record was left out, put in or moved."""

    def __init__(self) -> None:
        self.count = 0


Mechanism = Callable[[], AbstractContextManager[Acts]]


@contextmanager
def as_shipped() -> Iterator[Acts]:
    """0.19.8 as it is."""
    yield Acts()


@contextmanager
def overwritten() -> Iterator[Acts]:
    """Before DeepSpeed#5606: nothing waits until a buffer has been reduced before it is filled again."""
    optimizer, acts = _optimizer(), Acts()
    average, wait = optimizer.average_tensor, torch.cuda.Stream.wait_stream

    def averaging(self: Any, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        def waiting(stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
            if other is self.reduction_stream:
                acts.count += 1
            else:
                wait(stream, other)

        with patch.object(torch.cuda.Stream, "wait_stream", waiting):
            average(self, tensor, dtype)

    with patch.object(optimizer, "average_tensor", averaging):
        yield acts


@contextmanager
def repaired() -> Iterator[Acts]:
    """Whoever fills a buffer waits until it has been reduced, and for nothing else; as DeepSpeed#8366 proposes."""
    optimizer, acts = _optimizer(), Acts()
    fill, reduce = optimizer.reduce_independent_p_g_buckets_and_remove_grads, optimizer.reduce_ipg_grads

    def reducing(self: Any, comm_dtype: torch.dtype | None = None) -> None:
        dtypes = list(self.ipg_buckets) if comm_dtype is None else [comm_dtype]
        from_buffer = [self.ipg_buckets[each] for each in dtypes if each not in self.extra_large_param_to_reduce]
        reduce(self, comm_dtype)
        if self.reduction_stream is not None:
            for bucket in from_buffer:
                bucket.reuse_events[bucket.index] = self.reduction_stream.record_event()

    def filling(self: Any, param: torch.nn.Parameter, group: int) -> None:
        bucket = self.ipg_buckets[self.get_param_comm_dtype(param)]
        is_full = bucket.elements + param.numel() > self.reduce_bucket_size
        event = bucket.reuse_events.get(1 - bucket.index if is_full else bucket.index)
        if event is not None and param.numel() <= self.reduce_bucket_size:
            acts.count += 1
            _accelerator().current_stream().wait_event(event)
        fill(self, param, group)

    with (
        overwritten(),
        patch.object(optimizer, "reduce_ipg_grads", reducing),
        patch.object(optimizer, "reduce_independent_p_g_buckets_and_remove_grads", filling),
    ):
        yield acts


@contextmanager
def serialized() -> Iterator[Acts]:
    """The backward pass waits for every reduction as soon as it is queued, so that nothing of it is hidden."""
    optimizer, acts = _optimizer(), Acts()
    reduce = optimizer.reduce_ipg_grads

    def reducing(self: Any, comm_dtype: torch.dtype | None = None) -> None:
        reduce(self, comm_dtype)
        if self.reduction_stream is not None:
            acts.count += 1
            _accelerator().current_stream().wait_stream(self.reduction_stream)

    with patch.object(optimizer, "reduce_ipg_grads", reducing):
        yield acts


@contextmanager
def handed_back() -> Iterator[Acts]:
    """Before DeepSpeed#7965: the allocator is not told that the reduction stream uses a gradient, and gives its memory
    to whoever asks next in the backward pass."""
    optimizer, acts = _optimizer(), Acts()
    reduce = optimizer.allreduce_and_copy_with_multiple_ranks

    def reducing(self: Any, *args: Any, **options: Any) -> None:
        acts.count += 1
        # What it is asked for in there is whether to tell the allocator, and nothing else.
        with patch.object(_accelerator(), "resolves_data_dependency", lambda: True):
            reduce(self, *args, **options)

    with patch.object(optimizer, "allreduce_and_copy_with_multiple_ranks", reducing):
        yield acts


@contextmanager
def serialized_and_handed_back() -> Iterator[Acts]:
    """Both, for siblings that neither must reach."""
    both = Acts()
    with serialized() as waits, handed_back() as records:
        yield both
    both.count = waits.count + records.count


MECHANISMS: dict[str, Mechanism] = {
    "as-shipped": as_shipped,
    "repaired": repaired,
    "serialized": serialized,
    "handed-back": handed_back,
    "overwritten": overwritten,
    "serialized-and-handed-back": serialized_and_handed_back,
}


def _optimizer() -> Any:
    from deepspeed.runtime.zero import stage_1_and_2

    return stage_1_and_2.DeepSpeedZeroOptimizer


def _accelerator() -> Any:
    from deepspeed.accelerator import get_accelerator

    return get_accelerator()
