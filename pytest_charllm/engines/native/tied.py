"""A head that shares the embedding's weights, where a pipeline has the two in different stages.

Each stage then has a copy. Both start alike, and stay so because each is updated by the sum of both gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from pytest_charllm.engines.native.mesh import Mesh
from pytest_charllm.engines.native.model import Decoder


class TiedHead:
    """`copy` is the head of this rank that is not among the model's own parameters; None where there is none."""

    def __init__(self, stages: Sequence[Decoder], mesh: Mesh) -> None:
        tied = stages[0].shape.tied
        self._axis = mesh.ends
        self._embed = next((stage.embed.weight for stage in stages if tied and stage.embed is not None), None)
        self.copy = next((stage.head.weight for stage in stages if tied and stage.head is not None), None)

    @torch.no_grad()
    def sum(self) -> None:
        """Give both copies the sum of their gradients. With both on this rank nothing is sent."""
        if self._embed is not None and self.copy is not None:
            embed, head = local_gradient(self._embed), local_gradient(self.copy)
            head.copy_(embed.add_(head))
        elif self._axis.size > 1:
            mine = self._embed if self._embed is not None else self.copy
            assert mine is not None, "the ends of the pipeline have the embedding or the head"
            dist.all_reduce(local_gradient(mine), group=self._axis.group)


def local_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's part of a gradient that is there."""
    gradient = parameter.grad
    assert gradient is not None, "every parameter takes part in every step"
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
