"""Initial weights: the same full model for every layout, each rank keeping its part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_charllm.engines.native.mesh import ALONE, Mesh
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario.models import ModelShape, is_adapter, parameter_list
from pytest_charllm.scenario.placement import placement

_STD = 0.02


@torch.no_grad()
def initialize(
    model: Decoder, seq: int, device: torch.device, seed: int, generator_device: torch.device, mesh: Mesh = ALONE
) -> None:
    """Give a model that was built on the meta device its memory on `device`, its weights, and RoPE for `seq` tokens.

    Every full parameter has a generator of its own, so a rank draws what it has a part of, one at a time, and no rank
    ever holds the full model. A CPU generator gives the same weights on every machine; one on the GPU is faster by
    orders of magnitude, but its numbers are those of that GPU.
    """
    model.to_empty(device=device)
    model.fill_rotary(seq, device)
    names = {name for name, _ in parameter_list(model.shape)}
    for name, parameter in model.named_parameters():
        full_name = name if name in names else "embed.weight"
        full = full_parameter(model.shape, full_name, seed, generator_device)
        _fill(parameter, local_part(model.shape, full_name, full, mesh).to(device))


def full_parameter(shape: ModelShape, name: str, seed: int, device: torch.device) -> Tensor:
    """A parameter of `parameter_list` before any split, in fp32."""
    rows = dict(parameter_list(shape))
    # Adapters come last, so that the model around them is the one that it would be without.
    index = sorted(rows, key=is_adapter).index(name)
    full = torch.empty(rows[name], device=device)
    if full.ndim > 1 and not name.endswith(".up"):
        return full.normal_(0.0, _STD, generator=generator(seed, index, device))
    return full.fill_(0.0 if name.endswith(("bias", ".up")) else 1.0)


def generator(seed: int, index: int, device: torch.device) -> torch.Generator:
    """Of the `index`-th tensor of a run with this seed. What does not fit into torch's 64 bits is folded into them."""
    return torch.Generator(device).manual_seed((seed * 1_000_003 + index) % 2**64)


def local_part(shape: ModelShape, name: str, full: Tensor, mesh: Mesh) -> Tensor:
    """What a rank holds of a full parameter before data-parallel sharding."""
    tp_dim, expert = placement(shape, name)
    if tp_dim is not None:
        full = full.chunk(mesh.tp.size, dim=tp_dim)[mesh.tp.rank]
    return full.chunk(mesh.ep.size)[mesh.ep.rank] if expert else full


def copies(shape: ModelShape, name: str, mesh: Mesh) -> int:
    """How many ranks hold the same part of a parameter, before data-parallel sharding."""
    tp_dim, expert = placement(shape, name)
    batch = mesh.expert_batch if expert else mesh.batch
    return batch.size * (mesh.tp.size if tp_dim is None else 1)


def count_parameters(stages: Sequence[Decoder], world: World) -> int:
    """Trained ones of the full model, from what every rank holds; a copy of a tied head is none."""
    held = 0
    for stage in stages:
        counted = {name for name, _ in parameter_list(stage.shape)}
        for name, parameter in stage.named_parameters():
            if name in counted and parameter.requires_grad:
                held += parameter.numel() * world.size // copies(stage.shape, name, world.mesh)
    return world.total(held) // world.size


def _fill(parameter: Tensor, values: Tensor) -> None:
    if isinstance(parameter, DTensor):
        shard = distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(shard.to_local())
    else:
        parameter.copy_(values)
