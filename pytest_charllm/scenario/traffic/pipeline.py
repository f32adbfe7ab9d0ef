"""Pipeline parallelism: what goes from stage to stage, and the gradients of weights that both ends have."""

from __future__ import annotations

from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Scenario
from pytest_charllm.scenario.stages import place_of
from pytest_charllm.scenario.traffic.calls import FP32, Call, Held, element_bytes, local_tokens
from pytest_charllm.scenario.traffic.data import padded, shards


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """Of every microbatch each stage passes its activations on and gets their gradients back, in the compute precision;
    with sequence parallelism those of a rank's own tokens. Stages of the same rank hand them over."""
    layout, shape = scenario.layout, shape_of(scenario)
    if layout.pp == 1:
        return []
    size = local_tokens(scenario) * shape.hidden * element_bytes(scenario)
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
    """The gradient of the embedding that the last stage's head shares, where that is on another rank; once a step."""
    layout, shape = scenario.layout, shape_of(scenario)
    first, last = any(stage.first for stage in held), any(stage.last for stage in held)
    if not shape.tied or first == last:
        return []
    name = "embed.weight"
    rows = [(name, local_size(shape, name, (shape.vocab, shape.hidden), layout))]
    return [Call("all-reduce", "pp", FP32 * padded(rows, shards(layout)) // shards(layout))]
