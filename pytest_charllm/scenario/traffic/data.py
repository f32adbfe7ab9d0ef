"""Data parallelism: DDP, FSDP2 and HSDP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, prod

from pytest_charllm.scenario.models import ModelShape, is_trained, shape_of
from pytest_charllm.scenario.placement import is_summed_over_tp, placement
from pytest_charllm.scenario.spec import Layout, Scenario
from pytest_charllm.scenario.stages import TIED
from pytest_charllm.scenario.traffic.calls import (
    FP32,
    MIB,
    OPTIMIZER_BUCKET_BYTES,
    OWN_BUCKET_BYTES,
    Call,
    Held,
    in_buckets,
    local_parameters,
    padded,
    shards,
    trained,
)

_FIRST_BUCKET_BYTES = MIB
"""DDP's first bucket is smaller, so that communication starts early."""


def calls(scenario: Scenario, held: Held, bucket_cap_bytes: int) -> list[Call]:
    layout = scenario.layout
    if layout.batch_ranks == 1:
        return []
    if scenario.options.distributed_optimizer:
        return _distributed_optimizer(scenario, held)
    return _fsdp(scenario, held) if layout.sharding.is_fsdp else _ddp(scenario, held, bucket_cap_bytes)


def expert_copies(layout: Layout) -> int:
    """Ranks that have the same experts."""
    return layout.batch_ranks // layout.ep


def _ddp(scenario: Scenario, held: Held, bucket_cap_bytes: int) -> list[Call]:
    """DDP's gradient buckets, once it has rebuilt them after its first step.

    Gradients become ready in reverse order of use; of compiled blocks in another one, see `compiled_reductions`. With
    accumulation only the last microbatch reduces. Without overlap, and around stages of a pipeline, there is no DDP:
    the same gradients are reduced after the last backward pass. So are, over the ranks with the same ones, those of
    experts that are split over ep.
    """
    apart, sizes = _reduced(scenario, held)
    if _has_ddp(scenario):
        return [*apart, *_all_reduces(in_buckets(sizes[::-1], bucket_cap_bytes, _FIRST_BUCKET_BYTES))]
    return [*apart, *_all_reduces(in_buckets(sizes, OWN_BUCKET_BYTES))]


def compiled_reductions(scenario: Scenario, held: Held, bucket_cap_bytes: int) -> range | None:
    """How many all-reduces of a step DDP may make where blocks are compiled, None where it has no part.

    A compiled block hands over all of its gradients at once, in an order that is the compiler's, so where a bucket
    ends is too, but never their bytes. A gradient as large as a bucket ends the one that it is in; of the others each
    bucket but the last holds as much as a bucket must.
    """
    if not (_has_ddp(scenario) and scenario.options.compile):
        return None
    apart, sizes = _reduced(scenario, held)
    filled = [FP32 * prod(size) for size in sizes]
    large = sum(size >= bucket_cap_bytes for size in filled)
    small = sum(size for size in filled if size < bucket_cap_bytes)
    fewest = max(large, ceil(sum(filled) / (bucket_cap_bytes + max(filled, default=0))))
    first_and_last = 2
    return range(len(apart) + fewest, len(apart) + large + small // bucket_cap_bytes + first_and_last + 1)


def _has_ddp(scenario: Scenario) -> bool:
    layout, options = scenario.layout, scenario.options
    sharded = layout.sharding.is_fsdp or options.distributed_optimizer
    return layout.batch_ranks > 1 and not sharded and options.overlap and layout.pp == 1


def _reduced(scenario: Scenario, held: Held) -> tuple[list[Call], list[tuple[int, ...]]]:
    """The reductions of experts that are split over ep, and the sizes of all other gradients in order of use."""
    layout, shape = scenario.layout, shape_of(scenario)
    rows = trained(shape, local_parameters(shape, layout, held))
    experts = [size for name, size in rows if layout.ep > 1 and placement(shape, name).expert]
    others = [size for name, size in rows if layout.ep == 1 or not placement(shape, name).expert]
    copies = expert_copies(layout)
    return _all_reduces(in_buckets(experts, OWN_BUCKET_BYTES) if copies > 1 else [], ranks=copies), others


def _all_reduces(buckets: list[int], ranks: int | None = None) -> list[Call]:
    return [Call("all-reduce", "dp", size, ranks) for size in buckets]


def _distributed_optimizer(scenario: Scenario, held: Held) -> list[Call]:
    """Each bucket's gradients are scattered and its weights gathered, once a step, in fp32, filled up to the ranks.
    With sequence parallelism the pieces of what every tp rank has whole are summed over tp. What is tied across a
    pipeline is in buckets of its own, and so are experts, which only the ranks with the same ones share."""
    layout, shape = scenario.layout, shape_of(scenario)
    tied = TIED if shape.tied and layout.pp > 1 else ()
    kinds: dict[tuple[int, str, bool, bool], list[tuple[int, ...]]] = defaultdict(list)
    for name, size in reversed(trained(shape, local_parameters(shape, layout, held))):
        partial = layout.tp > 1 and is_summed_over_tp(shape, name, layout.sequence_parallel)
        whole = layout.tp > 1 and placement(shape, name).tp_dim is None
        ranks = expert_copies(layout) if placement(shape, name).expert else layout.batch_ranks
        kinds[ranks, name if name in tied else "", whole, partial].append(size)
    result, pieces = [], 0
    for (ranks, _, _, partial), sizes in kinds.items():
        for bucket in in_buckets(sizes, OPTIMIZER_BUCKET_BYTES):
            filled = ceil(bucket / (FP32 * ranks)) * FP32 * ranks
            if ranks > 1:
                result += [Call("reduce-scatter", "dp", filled, ranks), Call("all-gather", "dp", filled, ranks)]
            pieces += filled // ranks if partial else 0
    if pieces:
        result.append(Call("all-reduce", "tp", pieces))
    return result


def _fsdp(scenario: Scenario, held: Held) -> list[Call]:
    """FSDP2 with one group a block, one a layer of experts, and a root group of all other parameters.

    Each microbatch gathers a block for its forward pass and, where it is freed in between, again for its backward
    pass; the root group stays whole in between. Gradients are reduced in fp32, group by group, in every microbatch:
    over the shards, and with hsdp the shards over the replicas. Weights that stay gathered do so within a microbatch;
    in a pipeline all of this happens once a step.
    """
    layout, shape = scenario.layout, shape_of(scenario)
    once = layout.pp > 1
    result: list[Call] = []
    for size, with_gradient, is_block, ranks in _groups(shape, layout, held):
        gathers = 2 if is_block and not (layout.gathered or once) else 1
        result += [Call("all-gather", "dp", scenario.element_bytes * size, ranks)] * gathers
        if with_gradient:
            result += [Call("reduce-scatter", "dp", FP32 * with_gradient, ranks)]
        if with_gradient and layout.replicas > 1:
            result += [Call("all-reduce", "dp", FP32 * with_gradient // shards(layout), layout.replicas)]
    return result * (1 if once else scenario.accumulation)


def _groups(shape: ModelShape, layout: Layout, held: Held) -> Iterator[tuple[int, int, bool, int]]:
    """(elements as they travel, of those with a gradient, whether it is in a block, ranks among which it is split) of
    the groups of each stage that has parameters in them."""
    ranks, copies = shards(layout), expert_copies(layout)
    for stage in held:
        rows = local_parameters(shape, layout, (stage,))
        if copies > 1:
            among = copies if layout.ep > 1 else ranks
            experts = [(name, prod(size)) for name, size in rows if placement(shape, name).expert]
            yield from [(size, size if is_trained(shape, name) else 0, True, among) for name, size in experts]
        rows = [row for row in rows if not placement(shape, row[0]).expert]
        block = [row for row in rows if row[0].startswith(f"blocks.{stage.layers[0]}.")]
        root = [row for row in rows if not row[0].startswith("blocks.")]
        yield from [(padded(block, ranks), padded(trained(shape, block), ranks), True, ranks)] * len(stage.layers)
        if root:
            yield padded(root, ranks), padded(trained(shape, root), ranks), False, ranks
