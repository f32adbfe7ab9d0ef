"""Marks between which work is timed, without waiting for the device on a GPU, in wall and CPU time on a CPU; and quiet
to time it in."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch


class Span(NamedTuple):
    """Seconds between two marks. `cpu_s` is this process's CPU time, None on a GPU."""

    wall_s: float
    cpu_s: float | None

    @property
    def cost_s(self) -> float:
        """What the work costs on its own: time in the stream on a GPU, CPU time on a CPU (waiting is not counted)."""
        return self.wall_s if self.cpu_s is None else self.cpu_s


class Mark(Protocol):
    """A point in the work of one device."""

    def until(self, later: Mark) -> Span: ...


class CudaMark:
    """An event in the current stream. `until` may be asked once the device has passed both."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def until(self, later: Mark) -> Span:
        assert isinstance(later, CudaMark)
        return Span(self._event.elapsed_time(later._event) / 1e3, None)


class CpuMark:
    """A reading of this process's clocks. CPU time covers all of its threads, gloo's too."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def until(self, later: Mark) -> Span:
        assert isinstance(later, CpuMark)
        return Span(later._wall_s - self._wall_s, later._cpu_s - self._cpu_s)


def mark_type(device: torch.device) -> type[CudaMark] | type[CpuMark]:
    return CudaMark if device.type == "cuda" else CpuMark


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """What is timed in here is never stopped to look for garbage. It is collected before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
