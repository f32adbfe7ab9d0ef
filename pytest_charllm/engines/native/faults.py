"""Injected faults: real work and real failures in the steps of a timed window."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.native.clock import Span, mark_type
from pytest_charllm.engines.native.extra_work import HeldMemory, HostStall, Leak, LostOverlap, Slowdown
from pytest_charllm.engines.native.world import World
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Fault, FaultApplied
from pytest_charllm.records.faults import (
    HOST_STALL,
    LEAK,
    LEAKED,
    LOST_OVERLAP,
    MEMORY,
    SLOWDOWN,
    refuse_absent_step,
    step_of,
)

_SIZING_ROUNDS, _SIZING_STEPS = 3, 4
_ALLOCATION_BYTES = 1 << 30


class Faults:
    """The faults of a launch, as far as they concern this rank."""

    def __init__(self, faults: Sequence[Fault], world: World) -> None:
        mine = [fault for fault in faults if fault.rank is None or fault.rank == world.rank]
        device = world.device
        self._world = world
        self._slowdown = Slowdown(share, device) if (share := _total(mine, SLOWDOWN)) else None
        self._stall = HostStall(share) if (share := _total(mine, HOST_STALL)) else None
        self._memory = HeldMemory(share, device) if (share := _total(mine, MEMORY)) else None
        leaks = [LEAKED if fault.value is None else int(fault.value) for fault in mine if fault.name == LEAK]
        self._leak = Leak(sum(leaks)) if leaks else None
        self._without_overlap = any(fault.name == LOST_OVERLAP for fault in mine)
        self._overlap: LostOverlap | None = None
        self._somebody_slow = any(fault.name in (SLOWDOWN, HOST_STALL) for fault in faults)
        self._at_step = [(step, fault) for fault in mine if (step := step_of(fault)) is not None]

    def attach(self, model: object) -> None:
        """Before the first step: what has to be part of the model. Raises `BadInput` where it cannot be."""
        if not self._without_overlap:
            return
        if not isinstance(model, DistributedDataParallel):
            raise BadInput(f"fault {LOST_OVERLAP}: only gradients of DDP are reduced beside the backward pass; use dp2")
        self._overlap = LostOverlap(model, self._world.device)

    def check(self, steps: int) -> None:
        """Raise `BadInput` for a fault that would never happen in a window of that many steps."""
        for _, fault in self._at_step:
            refuse_absent_step(fault, steps)

    def size(self, one_step: Callable[[], object]) -> None:
        """Size extra work by steps of training: first clean ones, then with the work between them as in the window.

        All ranks take part, also those whose own work is not slowed. Memory is taken, and counts start, at the end.
        """
        if self._somebody_slow:
            self._fit(one_step)
        if self._memory is not None:
            self._memory.take()
        if self._overlap is not None:
            self._overlap.waited_s = 0.0

    def _fit(self, one_step: Callable[[], object]) -> None:
        mark = mark_type(self._world.device)
        for _ in range(_SIZING_ROUNDS):
            marks = []
            for _ in range(_SIZING_STEPS):
                begin = mark()
                one_step()
                middle = mark()
                if self._slowdown is not None:
                    self._slowdown.work()
                marks.append((begin, middle, mark()))
            self._world.synchronize()
            clean_s = median(begin.until(middle).cost_s for begin, middle, _ in marks)
            if self._stall is not None:
                self._stall.fit(clean_s)
            if self._slowdown is not None:
                self._slowdown.fit(clean_s, median(middle.until(end).cost_s for _, middle, end in marks))

    def before_step(self, index: int) -> bool:
        """Let happen what is due at this step of the window. True: its loss is to be NaN."""
        due = {fault.name for step, fault in self._at_step if step == index}
        if "hang" in due:
            while True:
                time.sleep(60)
        if "crash" in due:
            raise RuntimeError(f"injected crash at step {index} of the window")
        if "early-exit" in due:
            os._exit(0)
        if "oom" in due:
            _exhaust_memory(self._world.device)
        return "nan" in due

    def extra_work(self) -> None:
        for work in (self._slowdown, self._stall, self._leak):
            if work is not None:
                work.work()

    def applied(self, steps: Sequence[Span], extra: Sequence[Span]) -> tuple[FaultApplied, ...]:
        """What was achieved in steps of these spans, of which `extra` was injected. The other faults end a launch."""
        extra_s = sum(span.cost_s for span in extra)
        clean_s = sum(span.cost_s for span in steps) - extra_s
        found: list[tuple[str, float | None, float | None]] = []
        if self._slowdown is not None:
            # On a CPU the host's own work is in the same span.
            stalled_s = self._stall.spent_s if self._stall is not None and self._world.device.type == "cpu" else 0.0
            found.append((SLOWDOWN, self._slowdown.share, (extra_s - stalled_s) / clean_s))
        if self._stall is not None:
            found.append((HOST_STALL, self._stall.share, self._stall.spent_s / clean_s))
        if self._memory is not None:
            found.append((MEMORY, self._memory.share, self._memory.achieved))
        if self._leak is not None:
            found.append((LEAK, float(self._leak.objects), self._leak.achieved(len(steps))))
        if self._overlap is not None:
            found.append((LOST_OVERLAP, None, self._overlap.share_of(sum(span.wall_s for span in steps))))
        return tuple(FaultApplied(name=name, requested=asked, achieved=achieved) for name, asked, achieved in found)


def _total(faults: Sequence[Fault], name: str) -> float:
    """Several of one kind add up."""
    return sum(fault.value or 0.0 for fault in faults if fault.name == name)


def _exhaust_memory(device: torch.device) -> None:
    """Allocate until the allocator refuses. On a CPU the process may not grow any more first, to spare the machine."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if device.type == "cpu":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ALLOCATION_BYTES // 4, limits[1]))
    hoard = []
    try:
        while True:
            hoard.append(torch.empty(_ALLOCATION_BYTES, dtype=torch.uint8, device=device))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
