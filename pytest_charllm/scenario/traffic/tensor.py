"""Tensor parallelism: every border of a split layer is crossed once forward and once backward."""

from __future__ import annotations

from math import ceil

from pytest_charllm.scenario.chunks import chunk_sizes
from pytest_charllm.scenario.models import ModelShape, shape_of
from pytest_charllm.scenario.placement import is_summed_over_tp
from pytest_charllm.scenario.spec import Layout, Recompute, Scenario
from pytest_charllm.scenario.traffic.calls import (
    FP32,
    OWN_BUCKET_BYTES,
    Call,
    Held,
    copied_tokens,
    in_buckets,
    layers_of,
    local_parameters,
    local_tokens,
    shards,
    trained,
)


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """Per microbatch: attention and feed-forward of each layer, the embedding (left only) and the head (entered only);
    the loss needs the largest logit of each token, then its sum of exponentials and its target's logit.

    Gradients of which every rank has a part are summed once a step.
    """
    layout, shape = scenario.layout, shape_of(scenario)
    if layout.tp == 1:
        return []
    tokens = local_tokens(scenario)
    size = tokens * shape.hidden * scenario.element_bytes
    layers, first, last = layers_of(held), any(stage.first for stage in held), any(stage.last for stage in held)
    ends = first + last
    # Every copy of a token enters the experts of a mixture.
    inner = copied_tokens(scenario) * shape.hidden * scenario.element_bytes if shape.experts else size
    entered = left = [size, inner] * (2 * layers) + [size] * ends
    if scenario.options.recompute is not Recompute.NONE:
        # It enters both regions again and leaves the first; what comes after the last product is needed only where
        # experts' results are still to be weighted.
        entered = entered + [size, inner] * layers
        left = left + ([size, inner] if shape.experts else [size]) * layers
    if shape.lora and first:
        # Nothing before the first adapters is trained: no gradient leaves their region, nor enters the embedding's.
        entered, left = entered[1:], left[1:]
    if layout.sequence_parallel:
        once = [Call("all-gather", "tp", each) for each in entered]
        once += [Call("reduce-scatter", "tp", each) for each in left]
    else:
        once = [Call("all-reduce", "tp", each) for each in left]
    if last:
        chunks = chunk_sizes(tokens) if scenario.options.chunked_loss else [tokens]
        once += [Call("all-reduce", "tp", numbers * FP32 * chunk) for chunk in chunks for numbers in (1, 2)]
    once *= scenario.accumulation
    return once if scenario.options.distributed_optimizer else once + _partial_gradients(shape, layout, held)


def _partial_gradients(shape: ModelShape, layout: Layout, held: Held) -> list[Call]:
    """Of the parameters that are whole on every rank, in buckets; of each the shard that FSDP leaves."""
    sizes = [
        (ceil(size[0] / shards(layout)), *size[1:])
        for name, size in trained(shape, local_parameters(shape, layout, held))
        if is_summed_over_tp(shape, name, layout.sequence_parallel)
    ]
    return [Call("all-reduce", "tp", size) for size in in_buckets(sizes, OWN_BUCKET_BYTES)]
