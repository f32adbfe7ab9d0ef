"""Where the overlap switch changes something. Where it does not, on and off are the same work: an A/A control."""

from __future__ import annotations

from typing import NamedTuple

from pytest_charllm.scenario.spec import Scenario, Sharding


class Overlap(NamedTuple):
    """What the switch does to the traffic of one axis; `reason` says why where it does nothing."""

    axis: str
    real: bool
    reason: str


def overlap_of(scenario: Scenario, is_cpu: bool) -> tuple[Overlap, ...]:
    """One entry an axis that has traffic, for the native engine.

    | axis | on | off |
    |---|---|---|
    | dp, plain | DDP reduces a bucket while the backward pass goes on | reduced after the last backward pass |
    | dp, distributed optimizer | as DDP; weights are gathered while the forward pass goes on | one after the other |
    | dp, fsdp and hsdp | FSDP2's own streams | its collectives in the stream of the computation |
    | tp | products and transfers in pieces (async tensor parallel) | one after the other |
    | cp, ring | keys and values travel while those that are here are attended to | one after the other |
    """
    layout, options = scenario.layout, scenario.options
    found: list[Overlap] = []
    if layout.batch_ranks > 1:
        sharded = layout.sharding is not Sharding.NONE
        if sharded and is_cpu:
            found.append(Overlap("dp", False, "on a CPU FSDP2 waits for every collective"))
        elif layout.pp > 1 and not sharded and not options.distributed_optimizer:
            found.append(Overlap("dp", False, "a pipeline reduces plain gradients after its last backward pass"))
        else:
            found.append(Overlap("dp", True, ""))
    if layout.tp > 1:
        reason = ""
        if is_cpu:
            reason = "async tensor parallelism needs the peer access of GPUs"
        elif not options.compile:
            reason = "async tensor parallelism is the compiler's work"
        elif not layout.sequence_parallel:
            reason = "an all-reduce cannot be done in pieces, only sequence parallelism's collectives"
        found.append(Overlap("tp", not reason, reason))
    reasons = {
        "pp": "a pipeline's schedule sends while it computes, always",
        "cp": "" if layout.ring else "attention waits for what it exchanges",
        "ep": "experts wait for their tokens",
    }
    found += [Overlap(axis, not why, why) for axis, why in reasons.items() if getattr(layout, axis) > 1]
    return tuple(found)


def no_effect(scenario: Scenario, is_cpu: bool) -> str | None:
    """Why the switch changes nothing at all in this scenario; None where it does."""
    axes = overlap_of(scenario, is_cpu)
    if not axes:
        return "there is no traffic to overlap"
    if any(axis.real for axis in axes):
        return None
    return "; ".join(f"{axis.axis}: {axis.reason}" for axis in axes)
