"""The sequences a layout trains on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.engines.native.data import DISTINCT_STEPS, Batches, global_batch
from pytest_charllm.engines.native.mesh import Axis, Mesh
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import RankRequest

CPU = torch.device("cpu")

MakeRequest = Callable[..., RankRequest]


def rows(tokens: torch.Tensor) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in tokens.flatten(0, -2).tolist())


@settings(deadline=None)
@given(dp=st.sampled_from([1, 2, 4]), microbatch=st.sampled_from([1, 2, 4]), step=st.integers(0, 20))
def test_every_layout_sees_the_same_sequences(make_request: MakeRequest, dp: int, microbatch: int, step: int) -> None:
    """Sequences that depend on the layout make parity between layouts meaningless."""
    scenario = make_request(dp=dp, microbatch=microbatch, global_batch=16).scenario
    seen_inputs, seen_targets = [], []
    for rank in range(dp):
        batches = Batches(scenario, 100, 6, 7, World(rank, dp, CPU, Mesh(dp=Axis(dp, rank))))
        for number in range(scenario.accumulation):
            inputs, targets = batches.microbatch(step, number)
            assert inputs.shape == targets.shape == (microbatch, 6)
            seen_inputs.append(inputs)
            seen_targets.append(targets)
    expected = global_batch(make_request(global_batch=16).scenario, 100, 6, 7, step)
    assert rows(torch.stack(seen_inputs)) == rows(expected[:, :-1])
    assert rows(torch.stack(seen_targets)) == rows(expected[:, 1:])


def test_targets_are_the_next_tokens(make_request: MakeRequest) -> None:
    """A shift by none or two is learnt just as fast."""
    inputs, targets = Batches(make_request().scenario, 1000, 32, 7, World(0, 1, CPU)).microbatch(0, 0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_context_parallel_ranks_have_the_parts_of_a_sequence(make_request: MakeRequest) -> None:
    """Parts that overlap or leave a gap train on other sequences than one rank would."""
    request = make_request(cp=2)
    whole = Batches(make_request().scenario, 1000, 32, 7, World(0, 1, CPU)).microbatch(0, 0)
    parts = [
        Batches(request.scenario, 1000, 32, 7, World(rank, 2, CPU, Mesh(cp=Axis(2, rank)))).microbatch(0, 0)
        for rank in range(2)
    ]
    for full, *pieces in zip(whole, *parts, strict=True):
        assert torch.equal(torch.cat(pieces, dim=1), full)


@pytest.mark.parametrize(
    ("other_seed", "other_step"), [(8, 0), (2**63 - 1, 0), (2**62, 0), (7, 1), (7, DISTINCT_STEPS - 1)]
)
def test_steps_and_seeds_differ(make_request: MakeRequest, other_seed: int, other_step: int) -> None:
    """Zeros or a repeated batch are measurably faster than real tokens on a GPU. The largest seeds that may be asked
    for are beyond torch's 64 bits once a tensor's own number is added."""
    scenario = make_request().scenario
    first = global_batch(scenario, 1000, 32, 7, 0)
    assert not torch.equal(first, global_batch(scenario, 1000, 32, other_seed, other_step))
    assert first.unique().numel() > 50
    assert torch.equal(first, global_batch(scenario, 1000, 32, 7, DISTINCT_STEPS))
