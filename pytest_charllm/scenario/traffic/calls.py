"""One collective as the engines issue it, and sizes that several axes need."""

from __future__ import annotations

from math import ceil, prod
from typing import NamedTuple

from pytest_charllm.scenario.models import ModelShape, is_trained, sequence, shape_of
from pytest_charllm.scenario.placement import local_size
from pytest_charllm.scenario.spec import Layout, Scenario
from pytest_charllm.scenario.stages import Stage, held_parameters

FP32 = 4
MIB = 1 << 20

OWN_BUCKET_BYTES = 25 * MIB
"""Of gradients that the native engine reduces itself, after the last backward pass."""
OPTIMIZER_BUCKET_BYTES = 128 * MIB
"""Of the distributed optimizer, in fp32."""

Rows = list[tuple[str, tuple[int, ...]]]
"""(name, size) of parameters, in order of use."""

Held = tuple[Stage, ...]
"""The pipeline stages of one rank; without a pipeline the whole model as one."""


class Call(NamedTuple):
    """`bytes` of the full tensor of one collective on one rank. `ranks` in its group, where that is not its axis's own:
    experts have fewer copies than other weights, and of a pipeline both ends may share a weight."""

    op: str
    axis: str
    bytes: int
    ranks: int | None = None


def shards(layout: Layout) -> int:
    """Ranks among which FSDP splits a parameter."""
    return layout.batch_ranks // layout.replicas if layout.sharding.is_fsdp else 1


def padded(rows: Rows, ranks: int) -> int:
    """Elements of a group as they travel: each parameter's first dimension is filled up to a multiple of the ranks."""
    return sum(ceil(size[0] / ranks) * ranks * prod(size[1:]) for _, size in rows)


def layers_of(held: Held) -> int:
    return sum(len(stage.layers) for stage in held)


def local_tokens(scenario: Scenario) -> int:
    """Tokens of a microbatch that one context-parallel rank has."""
    return scenario.training.microbatch * sequence(scenario) // scenario.layout.cp


def copied_tokens(scenario: Scenario) -> int:
    """Of a mixture: rows that the experts of one microbatch work on, one for each expert of a token."""
    return local_tokens(scenario) * shape_of(scenario).topk


def local_parameters(shape: ModelShape, layout: Layout, held: Held) -> Rows:
    """What the stages of a rank have, in order of use, with the sizes that it holds before data-parallel sharding."""
    return [(name, local_size(shape, name, size, layout)) for name, size in held_parameters(shape, held)]


def trained(shape: ModelShape, rows: Rows) -> Rows:
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
