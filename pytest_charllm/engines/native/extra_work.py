"""Injected work and what it takes: each piece is real, and each tells how much of it there was."""

from __future__ import annotations

import hashlib
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines.native.clock import mark_type

_RESOLUTION = 0.002
"""A unit of extra work is at most this share of a step, so that the share asked for can be met."""
_GPU_WIDTHS, _CPU_WIDTHS = (4096, 2048, 1024, 512), (192, 128, 64)
_TRIAL_UNITS = 50
_HASHED_BYTES = 16 << 10


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
            unit_s = self._cost_s() / _TRIAL_UNITS
            if unit_s <= _RESOLUTION * clean_s:
                break
        return unit_s

    def _cost_s(self) -> float:
        mark = mark_type(self._device)
        before = mark()
        self.work()
        after = mark()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return before.until(after).cost_s


class HostStall:
    """Hashing on the host after every step is queued, for a share of a clean step. No sleep: a core is busy."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.spent_s = 0.0
        """CPU time of this thread so far."""
        self._units = 0
        self._data = bytes(_HASHED_BYTES)

    def work(self) -> None:
        began_s = time.thread_time()
        for _ in range(self._units):
            hashlib.sha256(self._data)
        self.spent_s += time.thread_time() - began_s

    def fit(self, clean_s: float) -> None:
        """Choose the number of units from the cost of a clean step."""
        self._units, self.spent_s = self._units or _TRIAL_UNITS, 0.0
        self.work()
        self._units = max(1, round(self.share * clean_s * self._units / self.spent_s))
        self.spent_s = 0.0


class HeldMemory:
    """A tensor, written to and held through the window: a share of the peak (on a CPU, of resident memory) so far."""

    def __init__(self, share: float, device: torch.device) -> None:
        self.share = share
        self.achieved = 0.0
        self._device = device
        self._held: Tensor | None = None

    def take(self) -> None:
        used = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else resident_bytes()
        self._held = torch.ones(max(1, round(self.share * used)), dtype=torch.uint8, device=self._device)
        self.achieved = self._held.numel() / used


class Leak:
    """Lists that nobody needs and nobody lets go, so many in every step."""

    def __init__(self, objects: int) -> None:
        self.objects = objects
        self._kept: list[list[list[object]]] = []

    def work(self) -> None:
        self._kept.append([[] for _ in range(self.objects)])

    def achieved(self, steps: int) -> float:
        """Objects a step."""
        return sum(map(len, self._kept)) / steps


class LostOverlap:
    """Gradients of DDP are reduced bucket by bucket while the backward pass waits, instead of beside it."""

    def __init__(self, model: DistributedDataParallel, device: torch.device) -> None:
        self.waited_s = 0.0
        """Time of the host in reductions. On a GPU only streams wait, so it says nothing there."""
        self._group = model.process_group
        self._ranks = dist.get_world_size(self._group)
        self._on_cpu = device.type == "cpu"
        # DDP compares annotations with the class itself, and here they are strings: a lambda has none.
        model.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def share_of(self, step_s: float) -> float | None:
        """Time in reductions as a share of the rest of the steps, whose total is `step_s`; None on a GPU."""
        return self.waited_s / (step_s - self.waited_s) if self._on_cpu else None

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        began_s = time.perf_counter()
        gradients = bucket.buffer().div_(self._ranks)
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        assert work is not None
        work.wait()
        self.waited_s += time.perf_counter() - began_s
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
