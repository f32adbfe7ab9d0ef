"""The traced pass: a few steady steps under the profiler, and one that is counted. Where a device's time goes, and that
the work is what the scenario says; contributes no step time."""

from __future__ import annotations

import time

import torch
from msgspec import structs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from pytest_charllm.engines.native import by_axis
from pytest_charllm.engines.native.clock import no_garbage_collection
from pytest_charllm.engines.native.counting import count_step
from pytest_charllm.engines.native.setup import Setup
from pytest_charllm.engines.native.timed import warmed
from pytest_charllm.engines.progress import Progress
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Collective, RankReport
from pytest_charllm.records.breakdown import AxisTime, Kernel, breakdowns
from pytest_charllm.scenario.memory import need
from pytest_charllm.scenario.spec import DEFAULT_ENGINE

STEPS = 5
LEAD = 2
"""Steps before the first that counts: the queue was empty when they began, and the profiler's buffers are new."""
MARK = "frac_kernel_cuda"
"""In the name of the kernel behind `Tensor.frac_`, which no training step launches (torch's own waits, behind
`torch.cuda._sleep`, are part of asynchronous tensor parallelism): it tells steps apart on the device, where a
synchronization would make a gap of its own."""
FILLED = 0.9
"""Of the device's memory: a step that needs more by estimate is not counted."""
_START_AND_STOP_S = 30.0


def run(setup: Setup, progress: Progress) -> RankReport:
    """Trains as the timed pass does, faults included. Raises `BadInput` on a CPU, where nothing can be traced."""
    request, world = setup.request, setup.world
    if world.device.type != "cuda":
        raise BadInput(f"scenario {request.scenario.key} cannot be traced on {world.device}: only on a GPU")
    step, report, faults, warm, step_s, began_s = warmed(setup, progress)
    expected_s = _START_AND_STOP_S + (LEAD + STEPS) * step_s
    progress("trace", expected_s=expected_s)
    warmed_s = time.perf_counter()
    mark = torch.zeros(1, device=world.device)
    with no_garbage_collection():
        world.barrier()
        # Of the device alone: every operator of the host that is recorded too would make the host's gaps longer.
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for index in range(LEAD + STEPS):
                if index >= LEAD:
                    mark.frac_()
                step(index)
                faults.extra_work()
            mark.frac_()
            world.synchronize()
        world.barrier()
    steps = breakdowns(_kernels(profiler), MARK)
    done = LEAD + STEPS
    axis_times: tuple[AxisTime, ...] = ()
    untold: tuple[str, ...] = ()
    if world.size > 1:
        progress("trace", expected_s=expected_s)  # with the counted step, which is slow
        axis_times, untold = by_axis.time_by_axis(step, done, world, faults.extra_work)
        done += by_axis.STEPS
    flops_per_step, collectives, uncounted = _counted(step, done, setup)
    missing = f"no trace: the profiler saw {len(steps)} of {STEPS} steps; CUPTI may be out of reach in this container"
    return structs.replace(
        report,
        phases=structs.replace(report.phases, warmup_s=warmed_s - began_s),
        warmup=warm.outcome,
        breakdown=steps if len(steps) == STEPS else (),
        axis_times=axis_times,
        untraced_step_s=step_s,
        flops_per_step=flops_per_step,
        collectives=collectives,
        notes=(*report.notes, *(() if len(steps) == STEPS else (missing,)), *untold, *uncounted),
    )


def _counted(
    step: TrainingStep, index: int, setup: Setup
) -> tuple[int | None, tuple[Collective, ...], tuple[str, ...]]:
    """FLOPs of all ranks, this rank's collectives, and why there are none: another engine has its own count, in the
    diagnostic pass, and what only fits compiled is not tried, alike on every rank."""
    scenario, world = setup.request.scenario, setup.world
    if scenario.engine != DEFAULT_ENGINE:
        return None, (), ()
    eager = structs.replace(scenario, options=structs.replace(scenario.options, compile=False))
    wanted, there = need(eager).total, torch.cuda.mem_get_info(world.device)[1]
    if wanted > FILLED * there:
        return None, (), (f"no step is counted: uncompiled it needs {wanted / 2**30:.0f} of {there / 2**30:.0f} GiB",)
    return *count_step(step, index, world), ()


def _kernels(profiler: profile) -> list[Kernel]:
    """Everything that kept the device busy. Not by way of `profile.events`, which takes seconds to build its tree."""
    traced = profiler.profiler.kineto_results if profiler.profiler is not None else None
    return [
        Kernel(event.device_resource_id(), event.name(), event.start_ns(), event.end_ns())
        for event in (traced.events() if traced is not None else ())
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
    ]
