"""The timed pass: warm up until steady, measure a window that nothing disturbs, calibrate."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from msgspec import structs
from torch import Tensor

from pytest_charllm.engines.errors import NonFinite
from pytest_charllm.engines.native.calibration import Interleaved, calibrate_gpu
from pytest_charllm.engines.native.clock import Span, mark_type, no_garbage_collection
from pytest_charllm.engines.native.experts import expert_imbalance
from pytest_charllm.engines.native.faults import Faults
from pytest_charllm.engines.native.setup import Setup, compile_cache_cold
from pytest_charllm.engines.native.world import World
from pytest_charllm.engines.progress import Progress
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.records import RankReport, StepSeries, Warmup, WindowEdges, WindowRule
from pytest_charllm.records.warmup import steady_step_s, warmup_ended, window_steps
from pytest_charllm.scenario.models import tokens_per_step


@dataclass(frozen=True)
class WarmUp:
    """How warm-up went. `step_s`: every step of it, the slowest rank's time, so equal on all ranks."""

    outcome: Warmup
    step_s: tuple[float, ...]


class Warmed(NamedTuple):
    """A model that trains steadily. `report` is of its build, `step_s` what a step takes now, `began_s` when warm-up
    began."""

    step: TrainingStep
    report: RankReport
    faults: Faults
    warm: WarmUp
    step_s: float
    began_s: float


@dataclass(frozen=True)
class Window:
    """What was measured. `extra` is the injected part of each step."""

    edges: WindowEdges
    steps: list[Span]
    extra: list[Span]
    losses: Tensor
    objects: int
    """Python objects alive after it."""


def run(setup: Setup, progress: Progress) -> RankReport:
    """Raises `NonFinite` where a loss of the window is NaN or infinite, on the rank that has it."""
    request, world = setup.request, setup.world
    cold = compile_cache_cold(request.scenario)
    # Unpacked at once: the model must be gone before the GPU is calibrated.
    step, report, faults, warm, step_s, began_s = warmed(setup, progress)
    steps = window_steps(request.window, step_s)
    faults.check(steps)
    interleaved = None
    if world.device.type == "cpu":
        interleaved = Interleaved(setup.shape, request.scenario.training.microbatch * setup.seq, world)
        interleaved.warm_up()
    warmed_s = time.perf_counter()
    objects = alive_objects()
    # Late, since telemetry looks closely from here on; but not so late that it would not be seen in time. By all ranks
    # together: the first that tells stands for all.
    world.barrier()
    progress("window", expected_s=steps * step_s, tokens_per_s=tokens_per_step(request.scenario) / step_s)
    window = measure(step, world, steps, faults, interleaved)
    progress("report")
    check_finite(window.losses, world)
    peak = torch.cuda.max_memory_allocated(world.device) if world.device.type == "cuda" else None
    imbalance = expert_imbalance(step.expert_load, world)
    del step
    gc.collect()
    compile_s = warm.step_s[0] - step_s if request.scenario.options.compile else None
    return structs.replace(
        report,
        phases=structs.replace(
            report.phases,
            compile_s=compile_s,
            warmup_s=warmed_s - began_s - (compile_s or 0.0),
            window_s=(window.edges.end_mono_ns - window.edges.begin_mono_ns) / 1e9,
        ),
        steps=StepSeries(
            wall_s=tuple(span.wall_s for span in window.steps),
            cpu_s=tuple(span.cpu_s for span in window.steps if span.cpu_s is not None),
        ),
        window=window.edges,
        warmup=warm.outcome,
        expert_imbalance=imbalance,
        calibration=calibrate_gpu(world) if interleaved is None else interleaved.results(),
        peak_memory_bytes=peak,
        objects=(objects, window.objects),
        compile_cache_cold=cold,
        faults=faults.applied(window.steps, window.extra),
    )


def warmed(setup: Setup, progress: Progress) -> Warmed:
    """Build the model, train it until it is steady, and size the faults by what its steps take then."""
    request, world = setup.request, setup.world
    progress("build")
    # On a GPU its own generator: billions of weights would keep a CPU busy for longer than the window lasts.
    step, report = setup.build(generator_device=world.device)
    faults = Faults(request.faults, world)
    faults.attach(getattr(step, "model", None))
    began_s = time.perf_counter()
    warm = warm_up(step, world, request.window, progress, compiles=request.scenario.options.compile)
    faults.size(partial(step, len(warm.step_s)))
    return Warmed(step, report, faults, warm, steady_step_s(request.window, warm.step_s), began_s)


def warm_up(step: TrainingStep, world: World, rule: WindowRule, progress: Progress, *, compiles: bool) -> WarmUp:
    """Train until the rule is met. The first step alone, since it compiles; then groups without a wait inside."""
    mark = mark_type(world.device)
    step_s: list[float] = []
    outcome = None
    if compiles:
        progress("compile")
    while outcome is None:
        group = rule.steady_steps if step_s else 1
        if step_s:
            progress("warm-up", step=len(step_s), expected_s=group * step_s[-1] if len(step_s) > 1 else None)
        marks = [mark()]
        for _ in range(group):
            step(len(step_s) + len(marks) - 1)
            marks.append(mark())
        world.synchronize()
        step_s += world.largest([a.until(b).wall_s for a, b in pairwise(marks)])
        outcome = warmup_ended(rule, step_s)
    return WarmUp(outcome, tuple(step_s))


def measure(step: TrainingStep, world: World, steps: int, faults: Faults, interleaved: Interleaved | None) -> Window:
    """The window. On a GPU the host only queues work in here: it reads no result and waits for nothing."""
    mark = mark_type(world.device)
    marks, losses = [], []
    with no_garbage_collection():
        world.barrier()
        begin_ns = time.monotonic_ns()
        for index in range(steps):
            poison = faults.before_step(index)
            begin = mark()
            loss, _ = step(index, poison)
            middle = mark()
            faults.extra_work()
            marks.append((begin, middle, mark()))
            losses.append(loss)
            if interleaved is not None:
                interleaved.measure()
        world.barrier()
        end_ns = time.monotonic_ns()
    spans = [begin.until(end) for begin, _, end in marks]
    extra = [middle.until(end) for _, middle, end in marks]
    stacked = torch.stack(losses).cpu()
    del marks, losses
    return Window(
        edges=WindowEdges(begin_mono_ns=begin_ns, end_mono_ns=end_ns),
        steps=spans,
        extra=extra,
        losses=stacked,
        objects=alive_objects(),
    )


def alive_objects() -> int:
    """Python objects that the collector tracks, once garbage is gone. Outside of the window: it takes a while."""
    gc.collect()
    return len(gc.get_objects())


def check_finite(losses: Tensor, world: World) -> None:
    """Raise `NonFinite` for the first loss (one a step) that is no number."""
    wrong = (~losses.isfinite()).nonzero().flatten().tolist()
    if wrong:
        raise NonFinite(
            f"the loss is {losses[wrong[0]].item()} at step {wrong[0]} of the window on rank {world.rank}"
            f" ({len(wrong)} of {len(losses)} steps); the weights are spoilt from there on"
        )
