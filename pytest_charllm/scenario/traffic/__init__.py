"""Collectives of one optimizer step as they must be: count and bytes, exactly, by operation and parallel axis.

Bytes are those of the full (unsharded) tensor of each collective. Which collectives there are follows from how the
engines use torch; the tests hold this against what is counted in real steps.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.spec import Scenario
from pytest_charllm.scenario.stages import held_stages
from pytest_charllm.scenario.traffic import context, data, expert, pipeline, tensor, zero
from pytest_charllm.scenario.traffic.calls import FP32, MIB, Call


class Predicted(NamedTuple):
    """All collectives of one kind on one parallel axis."""

    op: str
    axis: str
    count: int  # type: ignore[assignment]  # shadows tuple.count on purpose
    bytes: int


def collectives(scenario: Scenario, rank: int = 0, bucket_cap_bytes: int = 25 * MIB) -> tuple[Predicted, ...]:
    """What a rank must be seen to call in one optimizer step, sorted by axis and kind. Ranks of a pipeline differ.

    `bucket_cap_bytes` is DDP's own default. Tokens go to experts by balanced routing: the counted step does.
    Raises `BadInput` for what DeepSpeed does with experts, see `zero`.
    """
    return _summed(every_call(scenario, rank, bucket_cap_bytes))


def every_call(scenario: Scenario, rank: int = 0, bucket_cap_bytes: int = 25 * MIB) -> list[Call]:
    """The same one by one, in no order."""
    layout = scenario.layout
    if layout.world == 1:
        return []
    held = held_stages(layout, shape_of(scenario).layers, rank)
    if scenario.engine == "deepspeed":
        return zero.calls(scenario, held)
    calls = [
        *data.calls(scenario, held, bucket_cap_bytes),
        *tensor.calls(scenario, held),
        *context.calls(scenario, held),
        *expert.calls(scenario, held),
        *pipeline.calls(scenario, held),
    ]
    spread = max(layout.tp, layout.pp, layout.ep) > 1 or layout.sharding.is_fsdp
    if spread or scenario.options.distributed_optimizer:
        calls.append(Call("all-reduce", "world", FP32))
    return calls


def compiled_reductions(scenario: Scenario, rank: int = 0, bucket_cap_bytes: int = 25 * MIB) -> range | None:
    """How many all-reduces on dp a step of compiled blocks may make, None where there are as many as predicted."""
    held = held_stages(scenario.layout, shape_of(scenario).layers, rank)
    return None if scenario.engine == "deepspeed" else data.compiled_reductions(scenario, held, bucket_cap_bytes)


def _summed(calls: list[Call]) -> tuple[Predicted, ...]:
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in calls:
        sizes[call.axis, call.op].append(call.bytes)
    return tuple(Predicted(op, axis, len(each), sum(each)) for (axis, op), each in sorted(sizes.items()))
