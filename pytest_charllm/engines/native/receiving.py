"""How many buffers a pipeline stage receives into.

torch makes one for every microbatch of a step and keeps them all: of a deep pipeline with many microbatches that is
more than the activations themselves. As many as are in use at the same time are enough. Microbatches come in order, so
each takes the buffer of the one that has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    RECV_B,
    RECV_F,
)

from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.stages import in_flight, place_of


class Buffers(NamedTuple):
    """For activations of the stage before, and for gradients of the stage after."""

    activations: int
    gradients: int


def buffers_of_single(layout: Layout, place: int, microbatches: int) -> Buffers:
    """Of gpipe and 1f1b, which wait for what they receive, and receive again once it is used up."""
    return Buffers(in_flight(layout, place, microbatches), 1)


def buffers_of_looped(actions: Iterable[Any], layout: Layout, stage: int) -> Buffers:
    """Of one stage, by the order in which torch runs all actions of its rank. What is received is in use from then on
    until the gradients of weights are there; from a stage of the same rank it comes with that stage's own pass."""
    before, after = (
        0 <= neighbour < layout.stages and place_of(layout, neighbour) == place_of(layout, stage)
        for neighbour in (stage - 1, stage + 1)
    )
    used, most = [0, 0], [1, 1]
    for number, kind in _one_by_one(actions):
        if number == stage and kind in (FULL_BACKWARD, BACKWARD_WEIGHT):
            used = [each - 1 for each in used]
        elif (number, kind) == (stage, RECV_F) or (before and (number, kind) == (stage - 1, FORWARD)):
            used[0] += 1
        elif (number, kind) == (stage, RECV_B) or (
            after and number == stage + 1 and kind in (FULL_BACKWARD, BACKWARD_INPUT)
        ):
            used[1] += 1
        most = [max(pair) for pair in zip(most, used, strict=True)]
    return Buffers(*most)


def _one_by_one(actions: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """(stage, kind), those that torch runs as one apart."""
    for action in actions:
        for each in action.sub_actions or (action,):
            yield each.stage_index, each.computation_type


def share(received: dict[int, Any], buffers: int) -> None:
    """Let microbatches take turns: `received` is by their number."""
    for number in range(buffers, len(received)):
        received[number] = received[number % buffers]
