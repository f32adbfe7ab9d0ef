"""The diagnostic pass: proves what is trained, and that it trains alike. Contributes no time."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence

import torch
from msgspec import structs

from pytest_charllm.engines.errors import NonFinite
from pytest_charllm.engines.native.counting import count_step
from pytest_charllm.engines.native.experts import expert_imbalance
from pytest_charllm.engines.native.reference import train_reference
from pytest_charllm.engines.native.setup import Setup
from pytest_charllm.engines.progress import Progress
from pytest_charllm.records import RankReport


def run(setup: Setup, progress: Progress) -> RankReport:
    """`diagnostic_steps` as the scenario trains, one more that is counted, and the reference on rank 0.

    Raises `NonFinite` for a loss or gradient norm that is no number.
    """
    request, world = setup.request, setup.world
    progress("build")
    step, report = setup.build(generator_device=torch.device("cpu"))
    if request.scenario.options.compile:
        progress("compile")
    losses, norms = [], []
    for index in range(request.diagnostic_steps):
        loss, norm = step(index)
        losses.append(loss)
        norms.append(norm)
        progress("window", step=index + 1)
    mean_losses = world.mean(torch.stack(losses))
    grad_norms = world.mean(torch.stack(norms))
    _check_finite(mean_losses, grad_norms)
    parts_s = dict(step.parts_s)  # before the counted step
    flops_per_step, collectives = count_step(step, request.diagnostic_steps, world)
    imbalance = expert_imbalance(step.expert_load, world)
    del step
    gc.collect()
    reference = None
    if world.rank == 0:
        progress("report")
        reference = train_reference(request, setup.shape, setup.seq, world.device)
    world.barrier()
    return structs.replace(
        report,
        losses=tuple(mean_losses),
        grad_norms=tuple(grad_norms),
        parts_s=parts_s,
        expert_imbalance=imbalance,
        reference=reference,
        collectives=collectives,
        flops_per_step=flops_per_step,
    )


def _check_finite(losses: Sequence[float], norms: Sequence[float]) -> None:
    for index, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(f"the loss is {loss} and the gradient norm {norm} at diagnostic step {index}")
