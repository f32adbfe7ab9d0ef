"""What one optimizer step really does: its collectives, and its FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from pytest_charllm.engines.native.ring import OPERATORS
from pytest_charllm.engines.native.world import World
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Collective

aten = torch.ops.aten

_Arguments = tuple[Any, ...]

_FULL: Mapping[str, tuple[str, Callable[[_Arguments], Any]]] = {
    "c10d::allreduce_": ("all-reduce", lambda args: args[0]),
    "c10d::allreduce_coalesced_": ("all-reduce", lambda args: args[0]),
    "c10d::_allgather_base_": ("all-gather", lambda args: args[0]),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", lambda args: args[1]),
    "c10d::alltoall_base_": ("all-to-all", lambda args: args[1]),
    "c10d::broadcast_": ("broadcast", lambda args: args[0]),
    "c10d::send": ("send", lambda args: args[0]),
    "c10d::recv_": ("recv", lambda args: args[0]),
    "_c10d_functional::all_reduce": ("all-reduce", lambda args: args[0]),
    "_c10d_functional::all_reduce_": ("all-reduce", lambda args: args[0]),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", lambda args: [args[0]] * args[1]),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", lambda args: args[0]),
    "_c10d_functional::all_to_all_single": ("all-to-all", lambda args: args[0]),
}
"""Collective -> its name in the records, and which of its arguments is (or are) the full tensor."""

_NO_DATA = {"c10d::barrier", "c10d::monitored_barrier_", "_c10d_functional::wait_tensor"}


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives of this rank, also those that DDP's reducer and FSDP's hooks issue.

    `labels`: group name -> axis. What goes over a group without a label belongs to `default`, as losses and norms do:
    an axis has a group of its own, also where it is all of the world. What the engine's own operators do inside is seen
    here, and so by the modes around this one.
    """

    def __init__(self, labels: Mapping[str, str], default: str = "world") -> None:
        super().__init__()
        self._labels, self._default = labels, default
        self._count: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OPERATORS:
            with self:
                return OPERATORS[func](*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._add(func._schema.name, args)
        return func(*args, **(kwargs or {}))

    def collectives(self) -> tuple[Collective, ...]:
        """One entry an axis and operation, sorted."""
        return tuple(
            Collective(op=op, axis=axis, count=self._count[axis, op], bytes=self._bytes[axis, op])
            for axis, op in sorted(self._count)
        )

    def _add(self, name: str, args: _Arguments) -> None:
        if name in _NO_DATA:
            return
        if name not in _FULL:
            raise HarnessError(f"the step issues {name}, which this version does not know how to count; teach counting")
        op, full = _FULL[name]
        tensors = full(args)
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        key = (self._axis(args), op)
        self._count[key] += 1
        self._bytes[key] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _axis(self, args: _Arguments) -> str:
        for arg in args:
            if isinstance(arg, torch.ScriptObject):
                with suppress(RuntimeError):
                    return self._labels.get(dist.ProcessGroup.unbox(arg).group_name, self._default)
            elif isinstance(arg, str) and arg in self._labels:
                return self._labels[arg]
        return self._default


def count_step(step: TrainingStep, index: int, world: World) -> tuple[int, tuple[Collective, ...]]:
    """One more step, which is slower for being counted: (FLOPs of all ranks, collectives of this one).

    It runs uncompiled, since dispatch modes see into no compiled graph, and takes the memory of that.
    """
    with (
        torch.compiler.set_stance("force_eager"),
        counting_flops() as flops,
        step.counting_collectives() as collectives,
    ):
        step(index)
    return world.total(flops()), collectives()


@contextmanager
def counting_flops() -> Iterator[Callable[[], int]]:
    """Yields a function that says how many FLOPs were done so far: of matrix products and attention, as executed.

    Fused attention counts as the full square, 2 products forward and 5 backward, as torch counts it; torch's own table
    lacks the CPU kernel, and in older versions does not take fewer key than query heads.
    """
    forward = {
        aten._scaled_dot_product_cudnn_attention,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu,
    }
    backward = {
        aten._scaled_dot_product_cudnn_attention_backward,
        aten._scaled_dot_product_efficient_attention_backward,
        aten._scaled_dot_product_flash_attention_backward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    }
    formulas = {
        **dict.fromkeys(forward, _attention_flops),
        **dict.fromkeys(backward, _attention_backward_flops),
        aten._grouped_mm: _grouped_flops,
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    counter.mod_tracker = _Untracked()  # type: ignore[assignment]
    with counter:
        yield counter.get_total_flops


class _Untracked:
    """In the place of torch's tracker of modules, whose hooks a backward pass for inputs alone does not survive."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


def _grouped_flops(left: torch.Size, right: torch.Size, *_: Any, **__: Any) -> int:
    """Rows in groups by a matrix each, (rows, in) x (groups, in, out), or the gradient of these, (in, rows) x
    (rows, out): every row is multiplied once."""
    return 2 * left[0] * left[1] * right[-1]


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])


def _attention_backward_flops(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    return 5 * _attention_flops(query, key, value) // 2
