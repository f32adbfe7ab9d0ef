"""The pipelined step where the parity matrix cannot look: its buffers, its poison, and who tells the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_charllm.engines.native.entry import _out_of_memory
from pytest_charllm.engines.native.mesh import build_mesh
from pytest_charllm.engines.native.pipeline import LOOPED, SINGLE, TrainingStage
from pytest_charllm.engines.native.pipeline_step import PipelineStep
from pytest_charllm.engines.native.receiving import buffers_of_looped, buffers_of_single, share
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import RankRequest
from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.layout import SCHEDULES
from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.stages import stages_at

ALL_LOOPED = {
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


@pytest.fixture
def fake_pipeline() -> Iterator[Callable[[RankRequest, int], PipelineStep]]:
    """The step of one rank; what it receives is whatever lies in its memory."""
    yield _fake_step
    dist.destroy_process_group()


def _fake_step(request: RankRequest, rank: int) -> PipelineStep:
    layout = request.scenario.layout
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world)
    world = World(rank, layout.world, torch.device("cpu"), build_mesh(layout, rank))
    return PipelineStep(request, shape_of(request.scenario), 32, world, torch.device("cpu"))


def test_every_schedule_that_can_be_written_can_be_run() -> None:
    """A name without an implementation is found in the ranks, after minutes of waiting."""
    assert sorted({**SINGLE, **LOOPED}) == sorted(SCHEDULES)
    assert LOOPED == ALL_LOOPED


@pytest.mark.parametrize("name", ALL_LOOPED)
def test_buffers_do_not_grow_with_microbatches(name: str) -> None:
    """128 microbatches of one stage of 50 MB each would take 13 GB, twice what is in flight."""
    layout = Layout(pp=4, schedule=name)
    few, many = ([_buffers(layout, place, count) for place in range(4)] for count in (8, 32))
    assert few == many
    assert all(1 <= each <= 2 * layout.stages for pairs in few for pair in pairs for each in pair)


def test_buffers_of_one_stage_a_rank() -> None:
    """GPipe uses every activation once more when all are there, 1F1B those of the microbatches in flight."""
    assert buffers_of_single(Layout(pp=4, schedule="gpipe"), 1, 16) == (16, 1)
    assert [buffers_of_single(Layout(pp=4), place, 16).activations for place in range(4)] == [4, 3, 2, 1]
    received: dict[int, Any] = dict.fromkeys(range(5))
    received.update({0: "a", 1: "b"})
    share(received, 2)
    assert list(received.values()) == ["a", "b", "a", "b", "a"]


def test_fewer_microbatches_than_stages_are_torchs_loop_without_its_refusal() -> None:
    """The study has rows of 16 microbatches on 32 stages. A torch that needs more than the check lifted must show."""
    stage = SimpleNamespace(num_stages=4, stage_index=0, is_last=False)
    with pytest.raises(ValueError, match="Number of microbatches"):
        Schedule1F1B(stage, 2, loss_fn=lambda output, target: output)
    assert SINGLE["1f1b"](stage, 2, loss_fn=lambda output, target: output)._n_microbatches == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_poison_reaches_a_rank_with_and_without_the_loss(
    fake_pipeline: Callable[[RankRequest, int], PipelineStep], make_request: Callable[..., RankRequest], rank: int
) -> None:
    """A fault that only the last stage notices is none on the others. Without it, only the last stage tells a loss."""
    step = fake_pipeline(make_request(pp=2, global_batch=4), rank)
    healthy, _ = step(0)
    assert rank == 1 or healthy == 0.0
    poisoned, _ = step(1, poison=True)
    assert poisoned.isnan()


def test_memory_that_runs_out_in_a_stage_is_told_as_such() -> None:
    """torch wraps what a stage raises: the launch would be CRASHED, and its one line empty."""

    class Stage(TrainingStage):
        is_first = True
        log_prefix = "[Stage 0]"
        _runtime_validate = False

        def __init__(self) -> None:
            pass

        def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with pytest.raises(RuntimeError, match="failed to run forward") as caught:
        Stage().forward_one_chunk(0, (torch.zeros(1),))
    assert str(_out_of_memory(caught.value)).startswith("CUDA out of memory")
    assert _out_of_memory(RuntimeError("something else")) is None


def _buffers(layout: Layout, place: int, microbatches: int) -> list[tuple[int, int]]:
    stage = SimpleNamespace(
        submod=None, num_stages=layout.stages, group_size=layout.pp, group_rank=0, stage_index=0, is_last=False
    )
    assert layout.schedule is not None
    stages = [stage] * layout.stages_per_rank
    schedule = LOOPED[layout.schedule](stages, microbatches, loss_fn=lambda output, target: output)
    order = schedule.pipeline_order_with_comms[place]
    return [tuple(buffers_of_looped(order, layout, number)) for number in stages_at(layout, place)]
