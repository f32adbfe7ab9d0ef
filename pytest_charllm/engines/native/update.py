"""From the gradients that the backward passes left to the next step's weights."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pytest_charllm.engines.native.gradients import Gradients, clip_coefficient, local_gradient
from pytest_charllm.engines.native.optimizer import adamw


class Update(Protocol):
    def __call__(self) -> Tensor:
        """Reduce, clip, update, forget the gradients. Called once a step, after the last backward pass; returns the
        global gradient norm before clipping, a scalar on the device."""


class WholeUpdate:
    """Every rank updates all parameters that it has."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._optimizer = adamw(gradients.parameters)

    def __call__(self) -> Tensor:
        self._gradients.reduce()
        norm = self._gradients.norm()
        gradients = [local_gradient(parameter) for parameter in self._gradients.parameters]
        torch._foreach_mul_(gradients, clip_coefficient(norm))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm
