"""Injected faults: real work and real failures in the steps of a timed window."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from pytest_charllm.engines.native.clock import Span, mark_type
from pytest_charllm.engines.native.world import World
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Fault, FaultApplied
from pytest_charllm.records.faults import SLOWDOWN, format_fault

_DEFAULT_STEP = {"early-exit": 1}
_RESOLUTION = 0.002
"""A unit of extra work is at most this share of a step, so that the share asked for can be met."""
_GPU_WIDTHS, _CPU_WIDTHS = (4096, 2048, 1024, 512), (192, 128, 64)
_TRIAL_UNITS = 50
_SIZING_ROUNDS, _SIZING_STEPS = 3, 4
_ALLOCATION_BYTES = 1 << 30


class Slowdown:
    """Extra matrix products after every step, as many as the wanted share of a clean step takes."""

    def __init__(self, share: float, device: torch.device) -> None:
        self.share = share
        self._device = device
        self._units = 0
        self._operands: tuple[Tensor, Tensor, Tensor] | None = None

    def work(self) -> None:
        """Queue the extra work of one step in the compute stream, or do it here on a CPU."""
        if self._operands is not None:
            left, right, out = self._operands
            for _ in range(self._units):
                torch.mm(left, right, out=out)

    def fit(self, clean_s: float, extra_s: float) -> None:
        """Choose the number of units, from the costs of a clean step and of the extra work after it so far."""
        unit_s = extra_s / self._units if self._units else self._smallest_fitting_unit_s(clean_s)
        self._units = max(1, round(self.share * clean_s / unit_s))

    def _smallest_fitting_unit_s(self, clean_s: float) -> float:
        unit_s = float("inf")
        for width in _GPU_WIDTHS if self._device.type == "cuda" else _CPU_WIDTHS:
            dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
            left, right = (torch.randn(width, width, device=self._device, dtype=dtype) for _ in range(2))
            self._operands, self._units = (left, right, torch.empty_like(left)), _TRIAL_UNITS
            self.work()
            unit_s = _span(self._device, self.work).cost_s / _TRIAL_UNITS
            if unit_s <= _RESOLUTION * clean_s:
                break
        return unit_s


class Faults:
    """The faults of a launch, as far as they concern this rank."""

    def __init__(self, faults: Sequence[Fault], world: World) -> None:
        mine = [fault for fault in faults if fault.rank is None or fault.rank == world.rank]
        share = sum(fault.value or 0.0 for fault in mine if fault.name == SLOWDOWN)
        self._world = world
        self._slowdown = Slowdown(share, world.device) if share > 0 else None
        self._somebody_slow = any(fault.name == SLOWDOWN for fault in faults)
        self._at_step = [(_step(fault), fault) for fault in mine if fault.name != SLOWDOWN]

    def check(self, steps: int) -> None:
        """Raise `BadInput` for a fault that would never happen in a window of that many steps."""
        for step, fault in self._at_step:
            if step >= steps:
                raise BadInput(f"fault {format_fault(fault)}: the window has only steps 0 to {steps - 1}")

    def size(self, one_step: Callable[[], object]) -> None:
        """Size a slowdown by steps of training: first clean ones, then with the work between them as in the window.

        All ranks take part, also those whose own work is not slowed.
        """
        if not self._somebody_slow:
            return
        mark = mark_type(self._world.device)
        for _ in range(_SIZING_ROUNDS):
            marks = []
            for _ in range(_SIZING_STEPS):
                begin = mark()
                one_step()
                middle = mark()
                self.extra_work()
                marks.append((begin, middle, mark()))
            self._world.synchronize()
            if self._slowdown is not None:
                clean_s = median(begin.until(middle).cost_s for begin, middle, _ in marks)
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
        if self._slowdown is not None:
            self._slowdown.work()

    def applied(self, steps: Sequence[Span], extra: Sequence[Span]) -> tuple[FaultApplied, ...]:
        """What was achieved in steps of these spans, of which `extra` was injected. The other faults end a launch."""
        if self._slowdown is None:
            return ()
        extra_s = sum(span.cost_s for span in extra)
        achieved = extra_s / (sum(span.cost_s for span in steps) - extra_s)
        return (FaultApplied(name=SLOWDOWN, requested=self._slowdown.share, achieved=achieved),)


def _step(fault: Fault) -> int:
    return _DEFAULT_STEP.get(fault.name, 0) if fault.value is None else int(fault.value)


def _span(device: torch.device, work: Callable[[], None]) -> Span:
    mark = mark_type(device)
    before = mark()
    work()
    after = mark()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return before.until(after)


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
