"""Collectives of one optimizer step of one rank, on paper: how many of each kind, and how many bytes.

Bytes are those of the full (unsharded) tensor of each collective, summed, as in `records.Collective`. What a backend
makes of them (a ring moves ``2 (n-1)/n`` of an all-reduce) is not in here.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil, prod
from typing import NamedTuple

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.models import ModelShape, block_parameter_list, parameter_list, shape_of
from pytest_charllm.scenario.spec import Layout, Precision, Scenario, Sharding

_FP32 = 4
_SCALAR = 4
"""Bytes of a gradient norm: one fp32 number. The loss is not reduced within a step."""

MIB = 1 << 20


class Predicted(NamedTuple):
    """All collectives of one kind on one parallel axis."""

    op: str
    axis: str
    count: int  # type: ignore[assignment]  # shadows tuple.count on purpose
    bytes: int


def collectives(
    scenario: Scenario, bucket_cap_bytes: int = 25 * MIB, first_bucket_bytes: int = MIB
) -> tuple[Predicted, ...]:
    """What one rank must be seen to call in one optimizer step, sorted by axis and kind.

    The two bucket sizes are DDP's own defaults. Raises `BadInput` for a layout that this table does not cover.
    """
    layout = scenario.layout
    if layout != Layout(dp=layout.dp, sharding=layout.sharding) or layout.sharding not in (
        Sharding.NONE, Sharding.FSDP,
    ):  # fmt: skip
        raise BadInput(f"traffic of {scenario.key} is not predicted: only dp, plain or with fsdp, is")
    if layout.world == 1:
        return ()
    if layout.sharding is Sharding.FSDP:
        calls = _fsdp(scenario)
    else:
        sizes = ddp_buckets(shape_of(scenario), bucket_cap_bytes, first_bucket_bytes)
        calls = [("all-reduce", "dp", size) for size in sizes]
    return _summed(calls)


def ddp_buckets(shape: ModelShape, bucket_cap_bytes: int, first_bucket_bytes: int) -> list[int]:
    """Bytes of DDP's gradient buckets in the order of their all-reduces, once it has rebuilt them after its first step.

    Gradients become ready in reverse order of use. The reducer fills a bucket with them until it reaches its limit,
    the last one included, and starts the next; the first bucket's limit is smaller, so that communication starts early.
    With accumulation only the last microbatch reduces. A compiled block hands over its gradients in another order,
    which may shift where a bucket ends, but never their bytes.
    """
    sizes: list[int] = []
    filled, limit = 0, first_bucket_bytes
    for _, size in reversed(parameter_list(shape)):
        filled += _FP32 * prod(size)
        if filled >= limit:
            sizes.append(filled)
            filled, limit = 0, bucket_cap_bytes
    return [*sizes, filled] if filled else sizes


def _fsdp(scenario: Scenario) -> list[tuple[str, str, int]]:
    """FSDP2 with one group a block, and a root group of all other parameters.

    Each microbatch gathers a block for its forward pass and, as it is freed in between, again for its backward pass;
    the root group stays whole in between. Gradients are reduced in fp32, group by group, in every microbatch. The
    gradient norm of sharded gradients needs one number.
    """
    shape, ranks = shape_of(scenario), scenario.layout.dp
    gathered = 2 if scenario.options.precision is Precision.BF16 else _FP32
    block = _padded(block_parameter_list(shape), ranks)
    root = _padded([row for row in parameter_list(shape) if not row[0].startswith("blocks.")], ranks)
    calls = [("all-reduce", "world", _SCALAR)]
    for _ in range(scenario.accumulation):
        calls += [("all-gather", "dp", gathered * block)] * (2 * shape.layers)
        calls += [("all-gather", "dp", gathered * root)]
        calls += [("reduce-scatter", "dp", _FP32 * size) for size in (*[block] * shape.layers, root)]
    return calls


def _padded(rows: tuple[tuple[str, tuple[int, ...]], ...] | list[tuple[str, tuple[int, ...]]], ranks: int) -> int:
    """Elements of a group as they travel: each parameter's first dimension is filled up to a multiple of the ranks."""
    return sum(ceil(size[0] / ranks) * ranks * prod(size[1:]) for _, size in rows)


def _summed(calls: list[tuple[str, str, int]]) -> tuple[Predicted, ...]:
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for op, axis, size in calls:
        sizes[axis, op].append(size)
    return tuple(Predicted(op, axis, len(each), sum(each)) for (axis, op), each in sorted(sizes.items()))
