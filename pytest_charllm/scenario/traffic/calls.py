"""One collective as the engines issue it, and sizes that several axes need."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from pytest_charllm.scenario.models import ModelShape, parameter_list, sequence
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Layout, Precision, Scenario

FP32 = 4
MIB = 1 << 20


class Call(NamedTuple):
    """`bytes` of the full tensor of one collective on one rank."""

    op: str
    axis: str
    bytes: int


def element_bytes(scenario: Scenario) -> int:
    """Of one number in the compute precision, in which activations travel."""
    return 4 if scenario.options.precision is Precision.FP32 else 2


def local_tokens(scenario: Scenario) -> int:
    """Tokens of a microbatch that one context-parallel rank has."""
    return scenario.work.microbatch * sequence(scenario) // scenario.layout.cp


def local_parameters(shape: ModelShape, layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    """`parameter_list` with the sizes that one rank holds before data-parallel sharding."""
    return [(name, local_size(shape, name, size, layout)) for name, size in parameter_list(shape)]


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
