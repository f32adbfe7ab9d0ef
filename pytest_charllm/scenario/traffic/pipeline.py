"""Pipeline parallelism: what goes from stage to stage, and the gradients of weights that both ends have."""

from __future__ import annotations

from math import ceil

from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Scenario
from pytest_charllm.scenario.stages import TIED, place_of
from pytest_charllm.scenario.traffic.calls import FP32, Call, Held, local_tokens, padded, shards

ENDS = 2
"""Ranks that share a weight: of a pipeline the first and the last."""


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """Of every microbatch each stage passes its activations on and gets their gradients back, in the compute precision;
    with sequence parallelism those of a rank's own tokens. Stages of the same rank hand them over."""
    layout, shape = scenario.layout, shape_of(scenario)
    if layout.pp == 1:
        return []
    size = local_tokens(scenario) * shape.hidden * scenario.element_bytes
    if layout.sequence_parallel:
        size //= layout.tp
    between = [
        neighbour
        for stage in held
        for neighbour in (stage.number - 1, stage.number + 1)
        if 0 <= neighbour < layout.stages and place_of(layout, neighbour) != place_of(layout, stage.number)
    ]
    once = [Call(op, "pp", size) for _ in between for op in ("send", "recv")]
    return once * scenario.accumulation + _tied(scenario, held)


def _tied(scenario: Scenario, held: Held) -> list[Call]:
    """Once a step, the gradient of the embedding that the last stage's head shares, where that is on another rank: as
    much of it as a rank updates."""
    layout, shape = scenario.layout, shape_of(scenario)
    first, last = any(stage.first for stage in held), any(stage.last for stage in held)
    if not shape.tied or shape.lora or first == last:
        return []
    rows = [(TIED[0], local_size(shape, TIED[0], (shape.vocab, shape.hidden), layout))]
    ranks = layout.batch_ranks if scenario.options.distributed_optimizer else 1
    piece = ceil(padded(rows, shards(layout)) / (shards(layout) * ranks))
    return [Call("all-reduce", "pp", FP32 * piece, ranks=ENDS)]
