"""What calls on each parallel axis take of a step: a trace of its own, since one that sees the host's calls too makes
the host's gaps longer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_charllm.engines.native.traced_calls import (
    WINDOW,
    Durations,
    Event,
    Issued,
    axis_times,
    durations,
    issued,
    read_trace,
    shortest,
)
from pytest_charllm.engines.native.world import World
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.records.breakdown import AxisTime, Kernel

STEPS = 2
"""The first one's calls find the profiler's buffers new."""
MOST_EVENTS = 400_000
"""Of a trace that is written and read again within seconds."""


def time_by_axis(
    step: TrainingStep, index: int, world: World, extra_work: Callable[[], None]
) -> tuple[tuple[AxisTime, ...], tuple[str, ...]]:
    """`STEPS` more steps from `index` on, each followed by `extra_work`: (this rank's times of the last, why there are
    none). Collective. Nothing that a trace may hold or lack is an error, so no rank is left alone in the exchange."""
    problems: list[str] = []

    def told(error: Exception) -> None:
        problems.append(f"no time by axis: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300])

    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    try:
        profiler.start()
    except Exception as error:
        told(error)
    for number in range(STEPS - 1):
        step(index + number)
        extra_work()
    world.barrier()
    with record_function(WINDOW):
        step(index + STEPS - 1)
        extra_work()
        world.synchronize()
    world.barrier()
    mine: Durations = {}
    launched: list[Issued] = []
    loose: list[Kernel] = []
    try:
        if not problems:
            profiler.stop()
            launched, loose = issued(_events(profiler), world.rank)
            mine = durations(launched)
    except Exception as error:
        told(error)
    everywhere: list[Durations] = [{}] * world.size
    dist.all_gather_object(everywhere, mine)
    times: tuple[AxisTime, ...] = ()
    try:
        times = axis_times(launched, loose, step.axis_of, shortest(everywhere))
    except Exception as error:
        told(error)
    if not times and not problems:
        problems.append("no time by axis: the trace shows no call of a process group")
    return times, tuple(problems)


def _events(profiler: profile) -> list[Event]:
    """By way of the file: an event's own `metadata_json` is empty for calls (torch 2.11). Raises `ValueError` for more
    than are read in a few seconds."""
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    number = len(results.events()) if results is not None else 0
    if number > MOST_EVENTS:
        raise ValueError(f"a trace of {number:,} events, at most {MOST_EVENTS:,} are read")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(path.read_bytes())
