"""From a scenario to a model ready to train: recompute, compile, shard, initialize, replicate, in that order."""

from __future__ import annotations

import os
import shutil

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.errors import NoCompiler
from pytest_charllm.engines.native.model import Block, Decoder
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario import Precision, Scenario, Sharding
from pytest_charllm.scenario.models import ModelShape


def parallelize(
    scenario: Scenario, shape: ModelShape, seq: int, world: World, seed: int, generator_device: torch.device
) -> nn.Module:
    """The scenario's model as this rank trains it.

    FSDP computes in bf16 by its own mixed-precision policy. Everything else keeps fp32 weights under autocast, and a
    single rank gets no wrapper at all. Raises `NoCompiler`.
    """
    with torch.device("meta"):
        model = Decoder(shape)
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    for block in blocks:
        block.recompute = scenario.options.recompute
    if scenario.options.compile:
        check_compiler(world.device)
        # Else Dynamo cuts a block's graph where DDP's buckets end, which recompute does not survive. There is nothing
        # to gain: between separately compiled blocks the reduction overlaps by itself.
        torch._dynamo.config.optimize_ddp = False
        for block in blocks:
            # The method rather than the module, so that the hooks of FSDP stay outside of the compiled graph.
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)  # type: ignore[method-assign]
    if scenario.layout.sharding is Sharding.FSDP:
        mesh = init_device_mesh(world.device.type, (scenario.layout.dp,), mesh_dim_names=("dp",))
        bf16 = scenario.options.precision is Precision.BF16
        policy = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if bf16
            else MixedPrecisionPolicy()
        )
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # The root holds embedding, last norm and head: used last and first, so it stays gathered for the backward pass.
        fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    initialize(model, seq, world.device, seed, generator_device)
    if scenario.layout.sharding is Sharding.NONE and scenario.layout.dp > 1:
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
    return model


def check_compiler(device: torch.device) -> None:
    """Raise `NoCompiler` before torch.compile would, minutes later and over many lines."""
    if device.type == "cuda":
        variable, usual, what = "CC", ["gcc", "clang"], "a C compiler for Triton"
    else:
        variable, usual, what = "CXX", ["g++"], "a C++ compiler"
    named = os.environ.get(variable)
    candidates = [named] if named else usual
    if not any(shutil.which(candidate) for candidate in candidates):
        tried = " or ".join(candidates)
        raise NoCompiler(
            f"torch.compile needs {what} and found no {tried}; "
            f"install {usual[0]}, set {variable}, or use an .eager scenario"
        )
