"""Memory need of a scenario per GPU: an estimate, to refuse what cannot fit.

It is within 10 % of the six peaks it was held against so far, all on one H200. It knows nothing of fragmentation,
communication buffers and the CUDA context, and it assumes fused attention. Activations are counted in the manner of
Korthikanti et al. (2022), for the tensors that our decoders keep.
"""

from __future__ import annotations

from functools import cache
from math import prod

import msgspec

from pytest_charllm.scenario.chunks import chunk_tokens
from pytest_charllm.scenario.models import (
    Family,
    ModelShape,
    block_parameter_list,
    is_adapter,
    parameters,
    sequence,
    shape_of,
)
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Layout, Precision, Recompute, Scenario, Sharding
from pytest_charllm.scenario.stages import in_flight, stages, stages_at

_MASTER = 4
_GRADIENT = 4
_ADAM = 8
"""Bytes per parameter: master weights and gradients in fp32, Adam's two moments in fp32."""

_FULLY_SHARDED = (Sharding.FSDP, Sharding.HSDP, Sharding.ZERO3)
_SHARDED_GRADIENTS = (Sharding.ZERO2, *_FULLY_SHARDED)


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on the GPU that needs most.

    `parameters`: master weights, and the copies in compute precision that live at the peak. `logits`: with all that
    the loss makes of them. `total` is the peak: less than the sum of all where gradients come only as activations go.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    total: int


def need(scenario: Scenario) -> MemoryNeed:
    """The estimate for the place in the pipeline with the largest total. Raises `BadInput` for an unknown model.

    The scenario must pass the other feasibility rules: sizes are divided without looking for remainders.
    """
    places = range(scenario.layout.pp)
    return max((_need_at(scenario, place) for place in places), key=lambda need_there: need_there.total)


def _need_at(scenario: Scenario, place: int) -> MemoryNeed:
    shape, layout, options = shape_of(scenario), scenario.layout, scenario.options
    every = stages(layout, shape.layers)
    stages_here = [every[number] for number in stages_at(layout, place)]
    element = scenario.element_bytes
    layers = sum(len(stage.layers) for stage in stages_here)
    first, last = (any(getattr(stage, end) for stage in stages_here) for end in ("first", "last"))
    dense, experts, ends = _parameters_of(shape, layout, layers, first, last)
    held = dense + experts + ends

    sharded_held = _shard(dense + ends, experts, layout)
    master = held if layout.sharding is Sharding.NONE else sharded_held
    trained, sharded_trained = held, sharded_held
    if shape.lora:
        trained = layers * _adapters(shape, layout)
        sharded_trained = _shard(trained, 0, layout)
    shares = options.distributed_optimizer or layout.sharding is not Sharding.NONE
    optimizer = _ADAM * (sharded_trained if shares else trained)
    gradients = _GRADIENT * (sharded_trained if layout.sharding in _SHARDED_GRADIENTS else trained)
    if options.distributed_optimizer:
        # The piece that a rank updates is summed into memory of its own, but not where it is the whole.
        of_experts = experts if layout.batch_ranks > layout.ep else 0.0
        gradients += _GRADIENT * (sharded_trained if shape.lora else _shard(dense + ends, of_experts, layout))
    if scenario.lowers_weights and scenario.accumulation == 1:
        gradients = element * trained  # nothing adds up in fp32
    if layout.sharding in _FULLY_SHARDED and layout.pp > 1:
        # Weights stay gathered from the first microbatch to the last, and their gradients add up unsharded.
        copies, gradients = element * held, _GRADIENT * trained
    elif layout.sharding in _FULLY_SHARDED:
        copies = element * (ends + 2 * (dense + experts) / max(layers, 1))
    elif layout.sharding is Sharding.NONE and options.precision is Precision.FP32:
        copies = 0.0
    else:
        copies = element * held
    weights = _MASTER * master + copies
    if shape.lora and layout.sharding is Sharding.NONE:
        # What is frozen is stored as it is computed with, and has no masters.
        weights = element * held + (_MASTER * trained if element < _MASTER else 0)

    tokens = scenario.training.microbatch * sequence(scenario) / layout.cp
    microbatches = max(scenario.accumulation, 1)
    kept_at_once = in_flight(layout, place, microbatches) / layout.stages_per_rank
    kept, working = _activations_per_token(
        shape, options.recompute, options.compile, element, exchanged=layout.cp > 1 and not layout.ring
    )
    activations = tokens * (kept_at_once * layers * kept + working) / layout.tp
    logits = _logits(scenario, tokens, microbatches) if last else 0.0

    gradients_first = scenario.accumulation > 1 or (layout.dp > 1 and layout.sharding not in _FULLY_SHARDED)
    passing = gradients + activations + logits if gradients_first else max(gradients, activations + logits)
    return MemoryNeed(
        parameters=round(weights),
        gradients=round(gradients),
        optimizer=round(optimizer),
        activations=round(activations),
        logits=round(logits),
        total=round(weights + optimizer + passing),
    )


def _parameters_of(
    shape: ModelShape, layout: Layout, layers: int, first: bool, last: bool
) -> tuple[float, float, float]:
    """Parameters on one GPU before data-parallel sharding: of the blocks without experts, of experts, and of the
    embedding, positions, last norm and head, as far as its stages have them."""
    dense, experts = _block_parameters(shape)
    table = shape.vocab * shape.hidden
    if layout.pp == 1:
        ends = parameters(shape) - shape.layers * (dense + experts)
    else:
        ends = (table + shape.positions * shape.hidden) * first + table * last
    of_block = dense / layout.tp + _adapters(shape, layout)
    return layers * of_block, layers * experts / (layout.tp * layout.ep), ends / layout.tp


def _adapters(shape: ModelShape, layout: Layout) -> float:
    """Parameters of one block's adapters on one GPU."""
    return sum(
        prod(local_size(shape, name, size, layout)) for name, size in block_parameter_list(shape) if is_adapter(name)
    )


@cache
def _block_parameters(shape: ModelShape) -> tuple[int, int]:
    """(without experts, of all experts) of one block, adapters apart."""
    sizes = [(len(size) == 3, prod(size)) for name, size in block_parameter_list(shape) if not is_adapter(name)]
    return sum(size for stacked, size in sizes if not stacked), sum(size for stacked, size in sizes if stacked)


def _shard(dense: float, experts: float, layout: Layout) -> float:
    """Parameters that one data-parallel rank keeps. Expert parallelism has divided the experts among dp ranks already,
    so only dp / ep of them hold the same ones."""
    ranks = layout.batch_ranks / layout.replicas
    return dense / ranks + experts / max(ranks / layout.ep, 1)


def _logits(scenario: Scenario, tokens: float, microbatches: int) -> float:
    """Bytes of the last stage's logits and what the loss makes of them, for `tokens` of a microbatch on this rank."""
    shape, options, element = shape_of(scenario), scenario.options, scenario.element_bytes
    head = shape.vocab / scenario.layout.tp
    if options.chunked_loss:
        # Beside a chunk's logits both gradients wait for the backward pass, that of the head summed in fp32.
        logits = chunk_tokens(round(tokens)) * head * _bytes_per_logit(options.compile, element)
        logits += shape.hidden * tokens * element
        if not shape.lora:
            logits += shape.hidden * head * (_GRADIENT + (element if element < _GRADIENT else 0))
        return logits
    logits = tokens * head * _bytes_per_logit(options.compile, element)
    if scenario.layout.schedule == "gpipe":
        logits += (microbatches - 1) * tokens * head * (element if options.compile else 4)
    return logits


def _bytes_per_logit(compiled: bool, element: int) -> int:
    """Logits and their gradient; an eager loss also holds log-probabilities and two gradients in fp32."""
    return 2 * element if compiled else element + 3 * 4


def _activations_per_token(
    shape: ModelShape, recompute: Recompute, compiled: bool, element: int, exchanged: bool
) -> tuple[int, int]:
    """Bytes of one token: (kept by each layer until its backward pass, needed on top by the layer at work).

    Without recomputation a layer keeps its input, the attention's input, q, k, v and output, the sum after it, and
    the feed-forward's input and inner tensors; a compiler fuses silu and the product with it into one. Selective
    recomputation keeps the layer's input and the results of matrix products and attention; full only the input.
    Ulysses has the attention's output once more, `exchanged` for that of the rank's own tokens. A frozen layer needs no
    input in its backward pass, so those of the feed-forward are not kept.
    """
    hidden, ffn = shape.hidden, shape.ffn
    attention = 2 * hidden + 2 * shape.kv_width
    if shape.family is Family.GPT3:
        ffn_tensors, ffn_products = hidden + 2 * ffn, hidden + ffn
    else:
        ffn_tensors, ffn_products = hidden + (3 if compiled else 4) * ffn, hidden + 2 * ffn
    if shape.lora:
        ffn_tensors -= hidden + ffn
    if shape.experts:
        ffn_tensors, ffn_products = hidden + shape.topk * (hidden + ffn_tensors), shape.topk * ffn_products
    everything = 2 * hidden + hidden * (2 if exchanged else 1) + attention + ffn_tensors
    if recompute is Recompute.NONE:
        return element * everything, 0
    kept = 2 * hidden + attention + ffn_products if recompute is Recompute.SELECTIVE else hidden
    return element * kept, element * (everything - kept)
