"""Initial weights: the same full model for every layout, made from one generator in the order of `parameter_list`."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_charllm.engines.native.model import Decoder

_STD = 0.02


@torch.no_grad()
def initialize(model: Decoder, seq: int, device: torch.device, seed: int, generator_device: torch.device) -> None:
    """Give a model that was built on the meta device its memory on `device`, its weights, and RoPE for `seq` tokens.

    Every rank draws the full tensors one at a time and keeps its shard, so that no rank ever holds the full model.
    A CPU generator gives the same weights on every machine; one on the GPU is faster by orders of magnitude, but its
    numbers are those of that GPU.
    """
    model.to_empty(device=device)
    model.fill_rotary(seq, device)
    generator = torch.Generator(generator_device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=generator_device)
        if parameter.ndim > 1:
            full.normal_(0.0, _STD, generator=generator)
        else:
            full.fill_(0.0 if name.endswith("bias") else 1.0)
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            shard = distribute_tensor(full.to(device), mesh, placements, src_data_rank=None)
            parameter.to_local().copy_(shard.to_local())
        else:
            parameter.copy_(full)
