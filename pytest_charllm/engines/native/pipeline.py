"""Pipeline parallelism on torch's schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
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


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": OneForwardOneBackward,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


class StageWithLoss(PipelineStage):
    """A stage that, as the last one, gives its decoder the targets and returns the loss in the place of logits.

    torch would take a loss of the logits, which then stay in memory until the next microbatch has its own. They are no
    keyword arguments, since those are looked at as if they were activations.
    """

    targets: Sequence[Tensor] = ()
    _number = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._number = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_last:
            kwargs["targets"] = self.targets[self._number]
        return super().forward_maybe_with_nosync(*args, **kwargs)


def build_stages(
    decoders: Sequence[Decoder],
    layout: Layout,
    mesh: Mesh,
    tokens: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
) -> list[StageWithLoss]:
    """`tokens`: (microbatch, tokens of a sequence) on this rank; `dtype` of the activations between stages.

    All shapes are told, so that the stages never have to ask each other.
    """
    with torch.device("meta"):
        ids = torch.empty(tokens, dtype=torch.long)
        rows = tokens[0] * tokens[1] // (mesh.tp.size if decoders[0].region.sequence_parallel else 1)
        hidden = torch.empty(rows, decoders[0].shape.hidden, dtype=dtype, requires_grad=True)
        loss = torch.empty((), dtype=torch.float32, requires_grad=True)
    return [
        StageWithLoss(
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
    stages: list[StageWithLoss], layout: Layout, microbatches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Schedule:
    """`loss`: (what the last stage returned, targets) -> what is differentiated, already the microbatch's share."""
    name = schedule_of(layout)
    assert name is not None, "one stage needs no schedule"
    kind = SCHEDULES[name]
    single = isinstance(kind, type) and issubclass(kind, PipelineScheduleSingle)
    return kind(stages[0] if single else stages, microbatches, loss_fn=loss, scale_grads=False)
