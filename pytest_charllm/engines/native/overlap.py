"""The overlap switch, where torch has none of its own. `scenario.overlap` says what it does to which axis."""

from __future__ import annotations

import os

import torch
from torch import nn

from pytest_charllm.engines.native.mesh import Axis

STREAMS = ("all_gather_copy_in_stream", "all_gather_stream", "reduce_scatter_stream", "all_reduce_stream")


def shard_on_one_stream(model: nn.Module) -> None:
    """Have FSDP2 issue its collectives in the stream of the computation, so that neither runs beside the other.

    FSDP2 makes its streams in the first forward pass, in a context that all of a model's states share.
    """
    context = model._get_fsdp_state()._comm_ctx  # type: ignore[operator]
    make_streams = context.lazy_init

    def make_none(device: torch.device) -> None:
        make_streams(device)
        for name in STREAMS:
            setattr(context, name, torch.cuda.current_stream(device))

    context.lazy_init = make_none


def split_products(axis: Axis) -> None:
    """Have the compiler cut the products at the borders of tensor-parallel regions into pieces that travel while the
    next one is computed. Needs symmetric memory between the ranks; multicast stays off unless the environment asks."""
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    torch._inductor.config._micro_pipeline_tp = True
    # torch 2.13 has a type of its own for a group's name, which 2.11 lacks.
    enable_symm_mem_for_group(axis.name)  # type: ignore[arg-type]
