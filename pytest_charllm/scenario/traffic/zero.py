"""Collectives of DeepSpeed, ZeRO 0 to 3: as its own log of collectives counts them.

| stage | gradients | parameters |
|---|---|---|
| 0 | all-reduced once a step | whole |
| 1 | all-reduced once a step, a bucket at a time | gathered once a step, after the update |
| 2 | the same in every microbatch | the same |
| 3 | reduce-scattered in every microbatch, a bucket at a time | gathered around their use, see `gathering` |

Gradients and parameters travel in the compute precision. In a pipeline stage 0 in bf16 shares the optimizer's state as
stage 1 does, and every rank is told the loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, prod

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.spec import Precision, Scenario, Sharding
from pytest_charllm.scenario.stages import held_parameters
from pytest_charllm.scenario.traffic import pipeline
from pytest_charllm.scenario.traffic.calls import FP32, Call, Held
from pytest_charllm.scenario.traffic.gathering import gathers, persistent

STAGE = {Sharding.NONE: 0, Sharding.ZERO1: 1, Sharding.ZERO2: 2, Sharding.ZERO3: 3}

_PLAIN_BUCKET = 500_000_000
"""Elements after which a bucket of stage 0 is full, the last tensor included. No option changes it."""
_ALIGNMENT = 2
"""Elements: each rank's part of a flat group of parameters starts at a multiple of it."""
_FLAG, _FP64 = 1, 8

Sizes = dict[str, int]
"""Name -> elements, of the parameters that a rank's stage of the pipeline has, in order of use."""


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """All of one rank in one step. Raises `BadInput` for experts: what they are sent follows from the tokens."""
    shape, layout = shape_of(scenario), scenario.layout
    if shape.experts:
        raise BadInput(f"traffic of {scenario.key} is not predicted: DeepSpeed's experts get what the router says")
    sizes = {name: prod(size) for name, size in held_parameters(shape, held)}
    found = _OF_STAGE[STAGE[layout.sharding]](scenario, sizes)
    if layout.pp > 1:
        found += pipeline.calls(scenario, held)
        found.append(Call("broadcast", "world", 2 * FP32))  # a rank's own loss and the mean
        if held[-1].last and layout.dp > 1:
            found.append(Call("all-reduce", "world", FP32))
    return found


def _whole(scenario: Scenario, sizes: Sizes) -> list[Call]:
    """Stage 0. The norm is summed over the pipeline, and in fp32 also averaged over the data-parallel ranks."""
    element, bf16 = scenario.element_bytes, scenario.options.precision is Precision.BF16
    found = [Call("all-reduce", "dp", element * size) for size in _plain_buckets(sizes.values())]
    if bf16 and scenario.layout.pp > 1 and scenario.layout.dp > 1:
        found.append(_gather(scenario, sizes))
    norms = int(scenario.layout.pp > 1) + (not bf16)
    return [*found, *[Call("all-reduce", "world", FP32)] * norms]


def _gathered_after(scenario: Scenario, sizes: Sizes) -> list[Call]:
    """Stages 1 and 2. The norm is summed over the data-parallel ranks and over the pipeline; in bf16 a flag of
    overflow goes the same ways."""
    element, options = scenario.element_bytes, scenario.options
    times = scenario.accumulation if scenario.layout.sharding is Sharding.ZERO2 else 1
    sent = reduced_at_once(sizes.values(), options.reduce_bucket, _part(scenario, sizes))
    found = [Call("all-reduce", "dp", element * each) for each in sent] * times
    scalars = [FP32, _FLAG] if options.precision is Precision.BF16 else [FP32]
    ways = 2 if scenario.layout.pp > 1 else 1
    return [*found, _gather(scenario, sizes), *[Call("all-reduce", "world", size) for size in scalars] * ways]


def _gathered_around(scenario: Scenario, sizes: Sizes) -> list[Call]:
    """Stage 3. Each parameter is filled up to a multiple of the ranks."""
    element, ranks, options = scenario.element_bytes, scenario.layout.dp, scenario.options

    def whole(group: Iterable[int]) -> int:
        return element * sum(_padded(size, ranks) for size in group)

    buckets = reduce_buckets(reversed(sizes.values()), options.reduce_bucket)
    found = [Call("reduce-scatter", "dp", whole(bucket)) for bucket in buckets]
    around_use = gathers(shape_of(scenario), options)
    found += [Call("all-gather", "dp", whole(sizes[name] for name in names)) for names in around_use]
    found *= scenario.accumulation
    found += [Call("all-gather", "dp", whole([size])) for size in sizes.values() if persistent(size)]
    return [*found, Call("all-reduce", "world", _FP64)]


_OF_STAGE = (_whole, _gathered_after, _gathered_after, _gathered_around)


def _gather(scenario: Scenario, sizes: Sizes) -> Call:
    """All parameters at once, in a flat group."""
    return Call("all-gather", "dp", scenario.element_bytes * scenario.layout.dp * _part(scenario, sizes))


def _part(scenario: Scenario, sizes: Sizes) -> int:
    """Elements of each rank's part of the flat group of all parameters, which is filled up so that all begin alike."""
    return _padded(sum(sizes.values()), _ALIGNMENT * scenario.layout.dp) // scenario.layout.dp


def reduce_buckets(sizes: Iterable[int], limit: int) -> list[list[int]]:
    """The buckets into which gradients of these sizes go, in the order in which they become ready: a bucket is reduced
    before the gradient that would not fit. A gradient larger than a bucket has one of its own."""
    buckets: list[list[int]] = []
    for size in sizes:
        if not buckets or sum(buckets[-1]) + size > limit:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def reduced_at_once(sizes: Iterable[int], limit: int, part: int) -> list[int]:
    """Elements of each reduction, of gradients of these sizes in the order of the model, of which every rank keeps its
    `part`. What goes to different ranks is reduced together up to the first that is over the limit: only a gradient
    larger than a bucket is ever cut, where the part of the next rank begins."""
    sizes = list(sizes)
    end, found = sum(sizes), []
    for bucket in reduce_buckets(reversed(sizes), limit):
        begin, size = end - sum(bucket), 0
        borders = range((begin // part + 1) * part, end, part) if sum(bucket) > limit else ()
        for first, last in pairwise([begin, *borders, end]):
            size += last - first
            if size > limit:
                found.append(size)
                size = 0
        found += [size] if size else []
        end = begin
    return found


def _plain_buckets(sizes: Iterable[int]) -> list[int]:
    full: list[int] = []
    filled = 0
    for size in sizes:
        filled += size
        if filled > _PLAIN_BUCKET:
            full.append(filled)
            filled = 0
    return [*full, filled] if filled else full


def _padded(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple
