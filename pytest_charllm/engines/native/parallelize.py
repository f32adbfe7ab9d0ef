"""From a scenario to a model ready to train: recompute, compile, shard, initialize, replicate, in that order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.errors import NoCompiler
from pytest_charllm.engines.native.chunked_loss import chunk_loss
from pytest_charllm.engines.native.distributed_optimizer import ShardedUpdate
from pytest_charllm.engines.native.experts import Mixture
from pytest_charllm.engines.native.fp8 import to_fp8
from pytest_charllm.engines.native.gradients import Gradients
from pytest_charllm.engines.native.model import Block, Decoder
from pytest_charllm.engines.native.one_pass import OnePassUpdate, of_products
from pytest_charllm.engines.native.overlap import shard_on_one_stream, split_products
from pytest_charllm.engines.native.update import Update, WholeUpdate
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario import Precision, Scenario
from pytest_charllm.scenario.models import ModelShape
from pytest_charllm.scenario.overlap import overlap_of
from pytest_charllm.scenario.placement import placement
from pytest_charllm.scenario.stages import Stage, held_stages


@dataclass(frozen=True)
class Parallel:
    """The model as far as this rank trains it: its pipeline stages in the order of the model, or all of it as one.

    `module` is the first of them, or the wrapper that reduces its gradients; there is none around stages of a pipeline.
    """

    stages: tuple[Decoder, ...]
    module: nn.Module
    update: Update


def parallelize(
    scenario: Scenario,
    shape: ModelShape,
    seq: int,
    world: World,
    seed: int,
    generator_device: torch.device,
    real_routing: bool = False,
) -> Parallel:
    """The scenario's model as this rank trains it.

    FSDP computes in bf16 by its own mixed-precision policy. Everything else keeps fp32 weights under autocast, and a
    single rank gets no wrapper at all. Raises `NoCompiler`.
    """
    layout, mesh = scenario.layout, world.mesh
    sharded = layout.sharding.is_fsdp
    stages = tuple(
        _build(scenario, shape, stage, seq, world, real_routing)
        for stage in held_stages(layout, shape.layers, world.rank)
    )
    for stage in stages:
        initialize(stage, seq, world.device, seed, generator_device, mesh)
    if scenario.options.distributed_optimizer:
        sharded_update = ShardedUpdate(stages, mesh, scenario.accumulation, overlap=scenario.options.overlap)
        return Parallel(stages, stages[0], sharded_update)
    wrapped = not sharded and mesh.batch.size > 1 and scenario.options.overlap and layout.pp == 1
    update = _update(scenario, stages, Gradients(stages, mesh, averaged=sharded or wrapped))
    return Parallel(stages, _replicate(stages[0], world) if wrapped else stages[0], update)


def _update(scenario: Scenario, stages: Sequence[Decoder], gradients: Gradients) -> Update:
    if not scenario.options.compile:
        return WholeUpdate(gradients)
    products = [each for stage in stages for each in of_products(stage)] if scenario.lowers_weights else []
    return OnePassUpdate(gradients, products, accumulation=scenario.accumulation)


def _build(scenario: Scenario, shape: ModelShape, stage: Stage, seq: int, world: World, real_routing: bool) -> Decoder:
    """One stage, still without memory."""
    layout, options = scenario.layout, scenario.options
    sharded = layout.sharding.is_fsdp
    with torch.device("meta"):
        model = Decoder(shape, world.mesh, stage, layout.sequence_parallel, layout.ring)
    model.seq = seq // layout.cp
    model.routing.real = real_routing
    model.context.overlap = options.overlap
    if options.chunked_loss:
        model.chunk_loss = chunk_loss
    for block in _blocks(model):
        block.recompute = options.recompute
    if options.precision is Precision.FP8:
        for block in _blocks(model):
            to_fp8(block)
    overlaps = {axis.axis for axis in overlap_of(scenario, world.device.type == "cpu") if axis.real}
    if options.compile:
        _compile(model, world.device, sharded)
        if options.overlap and "tp" in overlaps:
            split_products(world.mesh.tp)
    if options.precision is not Precision.FP32 and not sharded:
        model.autocast = torch.bfloat16
        for parameter in model.parameters():
            if not parameter.requires_grad:  # and so never updated: it needs no more digits than its products use
                parameter.data = parameter.data.to(torch.bfloat16)
    if sharded:
        _shard(model, scenario, world)
        if not options.overlap and "dp" in overlaps:
            shard_on_one_stream(model)
    return model


def _blocks(model: Decoder) -> list[Block]:
    return [block for block in model.blocks.values() if isinstance(block, Block)]


def _compile(model: Decoder, device: torch.device, sharded: bool) -> None:
    """Each block and the loss on its own: compile time then does not grow with the number of layers.

    Of a mixture only parts where its block is no one graph: real routing waits for the device in the middle of it, and
    FSDP gathers each of its layers of experts by itself.
    """
    check_compiler(device)
    # Else Dynamo cuts a block's graph where DDP's buckets end, which recompute does not survive. There is nothing
    # to gain: between separately compiled blocks the reduction overlaps by itself.
    torch._dynamo.config.optimize_ddp = False
    compiled = partial(torch.compile, fullgraph=True, dynamic=False)
    for block in _blocks(model):
        # Methods rather than modules, so that the hooks of FSDP stay outside of the compiled graphs.
        if isinstance(block.ffn, Mixture) and (model.routing.real or sharded):
            block.attended = compiled(block.attended)  # type: ignore[method-assign]
            block.ffn.join = compiled(block.ffn.join)  # type: ignore[method-assign]
            if not model.routing.real:
                block.ffn.gate = compiled(block.ffn.gate)  # type: ignore[method-assign]
        else:
            block.forward = compiled(block.forward)  # type: ignore[method-assign]
    model.loss = compiled(model.loss)
    if model.chunk_loss is not None:
        model.chunk_loss = compiled(model.chunk_loss)


def _shard(model: Decoder, scenario: Scenario, world: World) -> None:
    mesh = world.mesh.device_mesh(world.device)
    bf16 = scenario.options.precision is not Precision.FP32
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    )
    # A pipeline runs its microbatches in between each other: weights stay gathered from its first pass to its last.
    freed = not scenario.layout.gathered and scenario.layout.pp == 1
    for block in _blocks(model):
        if isinstance(block.ffn, Mixture):
            _shard_experts(block.ffn, world, policy, freed)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=freed)
    # The root holds embedding, last norm and head: used last and first, so it stays gathered for the backward pass.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def _shard_experts(mixture: Mixture, world: World, policy: MixedPrecisionPolicy, freed: bool) -> None:
    """Over the ranks with the same experts, whole experts where that comes out even. Each layer is gathered when it is
    at work, which holds a third of the experts at a time."""
    apart = world.mesh.ep.size > 1
    ranks = (world.mesh.expert_batch if apart else world.mesh.shard).size
    dim = 0 if mixture.place.local % ranks == 0 else 1
    for experts in (mixture.w1, mixture.w3, mixture.w2):
        group = fully_shard(
            experts,
            mesh=world.mesh.device_mesh(world.device, expert=apart),
            mp_policy=policy,
            reshard_after_forward=freed,
            shard_placement_fn=lambda _: Shard(dim),
        )
        if apart:
            # An average over these ranks would leave out that tokens came from the whole batch.
            group.set_gradient_divide_factor(float(world.mesh.batch.size))
            # A sum that is divided afterwards is what every backend can do; torch divides a single rank's twice then.
            group.set_force_sum_reduction_for_comms(ranks > 1)


def _replicate(model: Decoder, world: World) -> nn.Module:
    if world.mesh.ep.size > 1:
        experts = [name for name, _ in model.named_parameters() if placement(model.shape, name).expert]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, experts)
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, devices, process_group=world.mesh.batch.group, gradient_as_bucket_view=True)


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
