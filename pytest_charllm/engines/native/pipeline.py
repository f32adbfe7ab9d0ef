"""Pipeline parallelism on torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from pytest_charllm.engines.native.mesh import Mesh
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.receiving import Buffers, buffers_of_looped, buffers_of_single, share
from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.stages import schedule_of

Schedule = PipelineScheduleSingle | PipelineScheduleMulti


class OneForwardOneBackward(Schedule1F1B):
    """1F1B also of fewer microbatches than stages. torch refuses to make one, though its loop runs them as it should:
    a stage warms up with all of them at most, and the bubble is the same formula."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        PipelineScheduleSingle.__init__(self, *args, **kwargs)

    def _get_pipeline_order(self) -> None:
        """Of use to torch's drawings alone, and it fails where a stage has fewer microbatches than warm-up."""


SINGLE: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": OneForwardOneBackward}
"""Schedules of one stage a rank."""

LOOPED: dict[str, Callable[..., Any]] = {
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


class TrainingStage(PipelineStage):
    """A stage that receives into no more buffers than it needs, and as the last one returns the loss.

    `targets`: (microbatches, microbatch, seq / cp) of the step.

    torch would take a loss of the logits, which then stay in memory until the next microbatch has its own. So the
    decoder is given the targets; as no keyword argument of torch's, since it looks at those as if at activations.
    """

    targets: Tensor | None = None
    buffers: Buffers | None = None
    _number = 0

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """In an older torch stages greet their neighbours, also those of the same rank, which gloo refuses."""
        return [greeting for greeting in super()._get_init_p2p_neighbors_ops() if greeting.peer != dist.get_rank()]

    def _warmup_backward_result(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the stages of a newer torch agree on before their first step: whether all know their shapes. They
        do, and in a fake process group nobody is there to say so."""
        return torch.ones_like(super()._warmup_backward_result(*args, **kwargs))

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        told = super()._prepare_forward_infra(*args, **kwargs)
        if self.buffers is not None and not self.is_first:
            share(self.args_recv_info, self.buffers.activations)
        return told

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        told = super()._prepare_backward_infra(*args, **kwargs)
        if self.buffers is not None and not self.is_last:
            share(self.grad_recv_info, self.buffers.gradients)
        return told

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._number = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if not self.is_first:
            # A backward pass for activations alone leaves their gradient here, and the next would be added to it.
            for received in self.args_recv_info[bwd_chunk_id]:
                assert received.buffer is not None, "every stage but the first receives"
                received.buffer.grad = None

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_last:
            assert self.targets is not None, "the step gives them"
            kwargs["targets"] = self.targets[self._number]
        return super().forward_maybe_with_nosync(*args, **kwargs)


def build_stages(
    decoders: Sequence[Decoder],
    layout: Layout,
    mesh: Mesh,
    tokens: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> list[TrainingStage]:
    """`tokens`: (microbatch, tokens of a sequence) on this rank; `dtype` of the activations between stages.

    All shapes are told, so that the stages never have to ask each other.
    """
    with torch.device("meta"):
        ids = torch.empty(tokens, dtype=torch.long)
        rows = tokens[0] * tokens[1] // (mesh.tp.size if decoders[0].region.sequence_parallel else 1)
        hidden = torch.empty(rows, decoders[0].shape.hidden, dtype=dtype, requires_grad=True)
        loss = torch.empty((), dtype=torch.float32, requires_grad=True)
    return [
        TrainingStage(
            decoder,
            decoder.stage.number,
            layout.stages,
            device,
            input_args=ids if decoder.stage.first else hidden,
            output_args=loss if decoder.stage.last else hidden,
            group=mesh.pp.group,
        )
        for decoder in decoders
    ]


def build_schedule(
    stages: list[TrainingStage], layout: Layout, microbatches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Schedule:
    """`loss`: (what the last stage returned, targets) -> what is differentiated, already the microbatch's share."""
    name = schedule_of(layout)
    assert name is not None, "one stage needs no schedule"
    if name in SINGLE:
        [stage] = stages
        stage.buffers = buffers_of_single(layout, stage.group_rank, microbatches)
        return SINGLE[name](stage, microbatches, loss_fn=loss, scale_grads=False)
    schedule = LOOPED[name](stages, microbatches, loss_fn=loss, scale_grads=False)
    for stage in stages:
        order = schedule.pipeline_order_with_comms[stage.group_rank]
        stage.buffers = buffers_of_looped(order, layout, stage.stage_index)
    return schedule
