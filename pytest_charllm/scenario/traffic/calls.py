"""One collective as the engines issue it, and sizes that several axes need."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from pytest_charllm.scenario.models import ModelShape, is_trained, sequence, shape_of
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Layout, Precision, Scenario
from pytest_charllm.scenario.stages import Stage, held_parameters

FP32 = 4
MIB = 1 << 20

Held = tuple[Stage, ...]
"""The pipeline stages of one rank; without a pipeline the whole model as one."""


class Call(NamedTuple):
    """`bytes` of the full tensor of one collective on one rank."""

    op: str
    axis: str
    bytes: int


def element_bytes(scenario: Scenario) -> int:
    """Of one number in the compute precision, in which activations travel."""
    return 4 if scenario.options.precision is Precision.FP32 else 2


def layers_of(held: Held) -> int:
    return sum(len(stage.layers) for stage in held)


def local_tokens(scenario: Scenario) -> int:
    """Tokens of a microbatch that one context-parallel rank has."""
    return scenario.training.microbatch * sequence(scenario) // scenario.layout.cp


def copied_tokens(scenario: Scenario) -> int:
    """Of a mixture: rows that the experts of one microbatch work on, one for each expert of a token."""
    return local_tokens(scenario) * shape_of(scenario).topk


def local_parameters(shape: ModelShape, layout: Layout, held: Held) -> list[tuple[str, tuple[int, ...]]]:
    """What the stages of a rank have, in order of use, with the sizes that it holds before data-parallel sharding."""
    return [(name, local_size(shape, name, size, layout)) for name, size in held_parameters(shape, held)]


def trained(shape: ModelShape, rows: list[tuple[str, tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    """Those of `local_parameters` that have gradients."""
    return [row for row in rows if is_trained(shape, row[0])]


def in_buckets(sizes: list[tuple[int, ...]], limit_bytes: int, first_limit_bytes: int | None = None) -> list[int]:
    """Bytes of the buckets into which consecutive fp32 tensors go: a bucket is full once it has reached its limit, the
    last tensor included. The first one's limit may differ."""
    buckets: list[int] = []
    filled, limit = 0, first_limit_bytes or limit_bytes
    for size in sizes:
        filled += FP32 * prod(size)
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, limit_bytes
    return [*buckets, filled] if filled else buckets
