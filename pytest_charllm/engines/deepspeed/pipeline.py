"""DeepSpeed's pipeline over stages of the native engine's decoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn

from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.models import ModelShape
from pytest_charllm.scenario.stages import stages


class Layers(nn.Module):
    """One stage as a single layer of DeepSpeed's pipeline: token ids, or what the stage before sent -> what is next."""

    def __init__(self, build: Callable[[], Decoder]) -> None:
        super().__init__()
        self.decoder = build()
        for parameter in self.decoder.parameters():
            # Else only the first stage's gradients count in the global norm: the others are taken for copies of them.
            parameter.model_parallel = True  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x)


def pipeline(
    layout: Layout,
    shape: ModelShape,
    build: Callable[..., Decoder],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> PipelineModule:
    """A module of which every rank builds its own stage, by `build(part=stage)`. `loss` is that of the last stage's
    logits and the targets."""
    specs = [LayerSpec(Layers, partial(build, part=stage)) for stage in stages(layout, shape.layers)]
    return PipelineModule(specs, num_stages=layout.pp, loss_fn=loss, partition_method="uniform")
