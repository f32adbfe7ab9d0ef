"""A head that shares the embedding's weights, where a pipeline has the two in different stages.

Each stage then has a copy. Both start alike, and stay so because each is updated by the sum of both gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.scenario.stages import TIED

EMBED, HEAD = TIED
"""The head is the copy: it counts neither as a parameter nor in the norm."""


def is_tied(model: Decoder, name: str) -> bool:
    """Whether another stage has a copy of this parameter, and both are trained."""
    whole = model.stage.first and model.stage.last
    return model.shape.tied and not model.shape.lora and not whole and name in TIED


def sum_tied(gradients: Mapping[str, Tensor], axis: Axis) -> None:
    """Give both copies the sum of their gradients, of which this rank has one, both or none, by their names. `axis`
    joins the two ranks; with both on one nothing is sent."""
    if len(gradients) == 2:
        gradients[HEAD].copy_(gradients[EMBED].add_(gradients[HEAD]))
    else:
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=axis.group)
