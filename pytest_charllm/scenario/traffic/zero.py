"""Collectives of DeepSpeed, ZeRO 0 to 3: as its own log of collectives counts them.

| stage | gradients | parameters |
|---|---|---|
| 0 | all-reduced once a step | whole |
| 1 | all-reduced once a step, a bucket at a time | gathered once a step, after the update |
| 2 | the same in every microbatch | the same |
| 3 | reduce-scattered in every microbatch, a bucket at a time | gathered around their use, see `gathering` |

Gradients and parameters travel in the compute precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, prod

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.models import ModelShape, parameter_list, parameters, shape_of
from pytest_charllm.scenario.spec import Precision, Scenario, Sharding
from pytest_charllm.scenario.traffic.calls import FP32, Call, element_bytes
from pytest_charllm.scenario.traffic.gathering import gathers, persistent

STAGE = {Sharding.NONE: 0, Sharding.ZERO1: 1, Sharding.ZERO2: 2, Sharding.ZERO3: 3}

_PLAIN_BUCKET = 500_000_000
"""Elements after which a bucket of stage 0 is full, the last tensor included. No option changes it."""
_ALIGNMENT = 2
"""Elements: each rank's part of a flat group of parameters starts at a multiple of it."""
_FLAG, _FP64 = 1, 8


def calls(scenario: Scenario) -> list[Call]:
    """All of one rank in one step. Raises `BadInput` for a pipeline and for experts: what a stage sends depends on
    where it is, and what an expert gets on the tokens."""
    shape, layout, element = shape_of(scenario), scenario.layout, element_bytes(scenario)
    if layout.pp > 1 or shape.experts:
        raise BadInput(f"traffic of {scenario.key} is not predicted: of DeepSpeed only that of ZeRO is")
    options, stage, ranks = scenario.options, STAGE[layout.sharding], layout.dp
    bf16 = options.precision is Precision.BF16
    if stage == 0:
        found = [Call("all-reduce", "dp", element * size) for size in _plain_buckets(shape)]
        return found if bf16 else [*found, Call("all-reduce", "world", FP32)]
    reductions = scenario.accumulation if stage > 1 else 1
    buckets = reduce_buckets([prod(size) for _, size in reversed(parameter_list(shape))], options.reduce_bucket)
    if stage < 3:
        found = [Call("all-reduce", "dp", element * sum(bucket)) for bucket in buckets] * reductions
        found.append(Call("all-gather", "dp", element * _padded(parameters(shape), _ALIGNMENT * ranks)))
        found.append(Call("all-reduce", "world", FP32))
        return [*found, Call("all-reduce", "world", _FLAG)] if bf16 else found

    def whole(group: Iterable[int]) -> int:
        return element * sum(_padded(size, ranks) for size in group)

    by_name = {name: prod(size) for name, size in parameter_list(shape)}
    found = [Call("reduce-scatter", "dp", whole(bucket)) for bucket in buckets]
    found += [Call("all-gather", "dp", whole(by_name[name] for name in names)) for names in gathers(shape, options)]
    found *= reductions
    found += [Call("all-gather", "dp", whole([size])) for size in by_name.values() if persistent(size)]
    return [*found, Call("all-reduce", "world", _FP64)]


def reduce_buckets(sizes: Iterable[int], limit: int) -> list[list[int]]:
    """The buckets into which gradients of these sizes go, in the order in which they become ready: a bucket is reduced
    before the gradient that would not fit. A gradient larger than a bucket has one of its own."""
    buckets: list[list[int]] = []
    for size in sizes:
        if not buckets or sum(buckets[-1]) + size > limit:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def _plain_buckets(shape: ModelShape) -> list[int]:
    full: list[int] = []
    filled = 0
    for _, size in parameter_list(shape):
        filled += prod(size)
        if filled > _PLAIN_BUCKET:
            full.append(filled)
            filled = 0
    return [*full, filled] if filled else full


def _padded(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple
