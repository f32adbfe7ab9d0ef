"""The update of compiled scenarios, with the fewest bytes moved: a card at its power cap pays for each in speed.

Clipping and AdamW are one pass over each parameter. On a rank that shares its gradients with nobody the pass also
writes what the products read, in their own precision, so that autocast has nothing left to cast: neither a weight in
the forward pass nor its gradient in the backward pass. The numbers are those of autocast over fp32 weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from pytest_charllm.engines.native.gradients import Gradients, clip_coefficient, local_gradient
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.optimizer import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY


@dataclass
class Held:
    """One parameter on this rank. `master` and Adam's moments are fp32 and of one shape; `weight` is what the products
    read where that is not the master. `sum`: of the microbatches' gradients so far, where `weight` is less precise."""

    master: Tensor
    mean: Tensor
    square: Tensor
    weight: Tensor | None = None
    sum: Tensor | None = None


class OnePassUpdate:
    """`products` are parameters of matrix products, to be kept in `dtype` from here on. `accumulation`: backward passes
    in a step."""

    def __init__(
        self,
        gradients: Gradients,
        products: Iterable[nn.Parameter] = (),
        dtype: torch.dtype = torch.bfloat16,
        accumulation: int = 1,
    ) -> None:
        self._gradients = gradients
        self._steps = 0
        self._held: dict[nn.Parameter, Held] = {}
        for parameter in products:
            held = self._held[parameter] = _hold(parameter.data)
            held.weight = parameter.data = held.master.to(dtype)
            if accumulation > 1:
                parameter.register_post_accumulate_grad_hook(partial(_accumulate, held))

    @torch.no_grad()
    def __call__(self) -> Tensor:
        for parameter in self._gradients.parameters:  # FSDP settles where its shards lie in the first forward pass
            if parameter not in self._held:
                self._held[parameter] = _hold(parameter.data)
        self._steps += 1
        self._gradients.reduce()
        norm = self._gradients.norm(self._gradient)
        each = [(held, self._gradient(parameter)) for parameter, held in self._held.items()]
        (_update_on_gpu if norm.is_cuda else _update)(each, clip_coefficient(norm), self._steps)
        for parameter, held in self._held.items():
            parameter.grad = held.sum = None
        return norm

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        held = self._held[parameter]
        return local_gradient(parameter) if held.sum is None else held.sum


def of_products(model: Decoder) -> list[nn.Parameter]:
    """What autocast would cast for products and for nothing else: lookups and norms read fp32, and a chunked loss sums
    the gradient of its head in fp32."""
    others = [model.embed, model.positions, model.head if model.chunk_loss else None]
    apart = {id(each.weight) for each in others if each is not None}
    return [each for each in model.parameters() if each.requires_grad and each.ndim > 1 and id(each) not in apart]


def _hold(values: Tensor) -> Held:
    local = values.to_local() if isinstance(values, DTensor) else values
    return Held(local, torch.zeros_like(local), torch.zeros_like(local))


@torch.no_grad()
def _accumulate(held: Held, parameter: Tensor) -> None:
    """Several gradients add up in fp32, as they do under autocast."""
    gradient = parameter.grad
    assert gradient is not None
    held.sum = gradient.to(held.master.dtype) if held.sum is None else held.sum.add_(gradient)
    parameter.grad = None


def _update_on_gpu(each: list[tuple[Held, Tensor]], scale: Tensor, step: int) -> None:
    from pytest_charllm.engines.native.adamw_kernel import adamw_  # Triton comes with GPU builds of torch alone

    for held, gradient in each:
        adamw_(held.master, gradient.contiguous(), held.mean, held.square, held.weight, scale, step)


def _update(each: list[tuple[Held, Tensor]], scale: Tensor, step: int) -> None:
    """The same by torch's own kernel, in more passes."""
    adamw(
        [held.master for held, _ in each],
        [gradient.float() * scale for _, gradient in each],
        [held.mean for held, _ in each],
        [held.square for held, _ in each],
        [],
        [torch.tensor(step - 1.0) for _ in each],
        fused=True, amsgrad=False, beta1=BETAS[0], beta2=BETAS[1],
        lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, eps=EPS, maximize=False,
    )  # fmt: skip
    for held, _ in each:
        if held.weight is not None:
            held.weight.copy_(held.master)
