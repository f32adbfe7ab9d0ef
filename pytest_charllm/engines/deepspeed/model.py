"""The native engine's decoder as DeepSpeed trains it: whole on every rank, partitioned by ZeRO 3, or one stage."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from deepspeed import zero
from torch import nn

from pytest_charllm.engines.deepspeed.config import zero_stage
from pytest_charllm.engines.deepspeed.mixture import Mixture, full_name_of
from pytest_charllm.engines.native.model import Block, Decoder
from pytest_charllm.engines.native.parallelize import check_compiler
from pytest_charllm.engines.native.weights import full_parameter
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.models import ModelShape
from pytest_charllm.scenario.stages import Stage


def build(
    scenario: Scenario,
    shape: ModelShape,
    seq: int,
    world: World,
    config: dict[str, Any],
    seed: int,
    generator_device: torch.device,
    part: Stage | None = None,
) -> Decoder:
    """The decoder with its weights. With ZeRO 3 no rank ever holds more of it than one parameter and its own shards.

    Raises `NoCompiler`.
    """
    if zero_stage(scenario) == 3:
        with zero.Init(config_dict_or_path=config), torch.device(world.device):
            model = Decoder(shape, stage=part)
    else:
        with torch.device("meta"):
            model = Decoder(shape, stage=part)
        if shape.experts:
            with torch.device(world.device):
                for block in model.blocks.values():
                    block.ffn = Mixture(shape, scenario.layout.ep)
        # Not to_empty: DeepSpeed knows an expert's parameters by what it has written on them.
        model._apply(lambda tensor: torch.empty_like(tensor, device=world.device) if tensor.is_meta else tensor)
    model.seq = seq
    if scenario.options.compile:
        check_compiler(world.device)
        model.loss = torch.compile(model.loss, fullgraph=True, dynamic=False)
    for block in model.blocks.values():
        assert isinstance(block, Block)
        block.recompute = scenario.options.recompute
        if scenario.options.compile:
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)  # type: ignore[method-assign]
    model.fill_rotary(seq, world.device)
    _fill(model, world, seed, generator_device)
    return model


@torch.no_grad()
def _fill(model: Decoder, world: World, seed: int, generator_device: torch.device) -> None:
    for name, parameter in model.named_parameters():
        full_name, expert = full_name_of(name, world.mesh.ep, model.shape.experts)
        values = full_parameter(model.shape, full_name, seed, generator_device)
        if expert is not None:
            values = values[expert]
        with _gathered(parameter):
            parameter.copy_(values.to(parameter.device, parameter.dtype))


def _gathered(parameter: nn.Parameter) -> AbstractContextManager[Any]:
    """The parameter whole, and afterwards partitioned again with what rank 0 has written."""
    if hasattr(parameter, "ds_id"):
        return zero.GatheredParameters([parameter], modifier_rank=0)
    return nullcontext()


def count_parameters(module: nn.Module, scenario: Scenario, world: World) -> int:
    """Of the full model, from what every rank holds of it: data-parallel ranks hold the same, but for the experts."""
    held = 0
    for parameter in module.parameters():
        expert = not getattr(parameter, "allreduce", True)
        held += getattr(parameter, "ds_numel", parameter.numel()) * (scenario.layout.ep if expert else 1)
    return world.total(held) // scenario.layout.dp
