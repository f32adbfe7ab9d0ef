"""The update in one pass gives the numbers of autocast over fp32 weights with torch's own optimizer."""

from __future__ import annotations

import pytest
import torch

from pytest_charllm.engines.native.gradients import Gradients
from pytest_charllm.engines.native.one_pass import OnePassUpdate, of_products
from pytest_charllm.engines.native.step import Step
from pytest_charllm.engines.native.world import join
from pytest_charllm.records import RankRequest
from pytest_charllm.scenario import Precision
from pytest_charllm.scenario.models import sequence, shape_of

CPU = torch.device("cpu")
STEPS = 4


def step_of(request: RankRequest) -> Step:
    return Step(request, shape_of(request.scenario), sequence(request.scenario), join(request), CPU)


def trained(step: Step) -> list[float]:
    return [value.item() for index in range(STEPS) for value in step(index)]


@pytest.mark.parametrize(
    ("model", "chunked_loss", "global_batch"),
    [
        ("tiny-llama", False, None),
        ("tiny-gpt", False, None),  # a tied head, positions, biases
        ("tiny-mixtral", False, None),
        ("tiny-llama", True, None),
        ("tiny-llama", False, 6),  # three microbatches
    ],
)
def test_numbers_are_those_of_autocast(make_request, alone, model, chunked_loss, global_batch) -> None:
    """Pins: a weight that is rounded where autocast reads fp32, gradients that add up in bf16, the clip forgotten."""
    request = make_request(
        model=model, precision=Precision.BF16, chunked_loss=chunked_loss, global_batch=global_batch
    )  # fmt: skip
    usual, step = step_of(request), step_of(request)
    decoder = step.parallel.stages[0]
    products = of_products(decoder)
    gradients = Gradients([decoder], join(request).mesh, averaged=False)
    step.update = OnePassUpdate(gradients, products, accumulation=request.scenario.accumulation)
    assert products
    assert all(each.dtype is torch.bfloat16 for each in products)
    assert trained(step) == pytest.approx(trained(usual), rel=1e-6)
    masters = {id(parameter): held.master for parameter, held in step.update._held.items()}
    for (name, ours), theirs in zip(decoder.named_parameters(), usual.model.parameters(), strict=True):
        torch.testing.assert_close(masters[id(ours)], theirs.detach(), rtol=1e-6, atol=1e-7, msg=name)
        torch.testing.assert_close(ours.detach(), theirs.detach().to(ours.dtype), rtol=2**-7, atol=0, msg=name)


def test_nothing_is_kept_between_steps(make_request, alone) -> None:
    """A gradient that stays would be in the next step's sum, and its memory in the peak."""
    request = make_request(precision=Precision.BF16, global_batch=4)
    step = step_of(request)
    decoder = step.parallel.stages[0]
    step.update = OnePassUpdate(
        Gradients([decoder], join(request).mesh, averaged=False), of_products(decoder), accumulation=2
    )
    step(0)
    assert all(parameter.grad is None for parameter in decoder.parameters())
    assert all(held.sum is None for held in step.update._held.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is Triton's")
@pytest.mark.parametrize("count", [1, 2048, 100_003])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernel_is_adamw(count: int, dtype: torch.dtype) -> None:
    """On a CPU the update is torch's own kernel, so nothing there would see a wrong correction or a tail left out."""
    from pytest_charllm.engines.native.adamw_kernel import adamw_
    from pytest_charllm.engines.native.optimizer import adamw

    generator = torch.Generator("cuda").manual_seed(5)
    parameter = torch.nn.Parameter(torch.randn(count, generator=generator, device="cuda"))
    master, optimizer = parameter.detach().clone(), adamw([parameter])
    mean, square, weight = torch.zeros_like(master), torch.zeros_like(master), master.to(torch.bfloat16)
    scale = torch.tensor(0.3, device="cuda")
    for step in range(1, STEPS + 1):
        gradient = torch.randn(count, generator=generator, device="cuda").to(dtype)
        parameter.grad = gradient.float() * scale
        optimizer.step()
        adamw_(master, gradient, mean, square, weight, scale, step)
    torch.testing.assert_close(master, parameter.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(weight, master.to(torch.bfloat16))
