"""The ranks of this launch: who am I, on which device, and the few exchanges that are not part of training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from pytest_charllm.engines.native.mesh import ALONE, Mesh, build_mesh
from pytest_charllm.errors import BadInput, DeviceError
from pytest_charllm.records import RankRequest
from pytest_charllm.scenario import Sharding
from pytest_charllm.scenario.models import shape_of

_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
"""Variables of the environment, and what they are where nothing was launched."""
_BEYOND_DEADLINE_S = 60.0
"""The launcher's deadline speaks first, since it can say where every rank hangs; this one only bounds the wait."""


@dataclass(frozen=True)
class World:
    """One rank's place. `device` is the rank's own, already selected."""

    rank: int
    size: int
    device: torch.device
    mesh: Mesh = ALONE

    def synchronize(self) -> None:
        """Wait until this rank's device has nothing left to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait until every rank's device has nothing left to do."""
        self.synchronize()
        if dist.is_initialized():
            dist.barrier()
            self.synchronize()

    def largest(self, values: Sequence[float]) -> list[float]:
        """Element by element, the largest over all ranks: the same list on every rank."""
        return self._reduce(torch.tensor(values, dtype=torch.float64), dist.ReduceOp.MAX).tolist()

    def total(self, value: int) -> int:
        return int(self._reduce(torch.tensor([value], dtype=torch.int64), dist.ReduceOp.SUM).item())

    def mean(self, values: torch.Tensor) -> list[float]:
        """Element by element, the mean over all ranks, in double precision."""
        return (self._reduce(values.detach().double().cpu(), dist.ReduceOp.SUM) / self.size).tolist()

    def _reduce(self, values: torch.Tensor, op: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if not dist.is_initialized():
            return values
        values = values.to(self.device)
        dist.all_reduce(values, op)
        return values.cpu()


def join(request: RankRequest) -> World:
    """`meet` the other ranks, and tell which of them this one shares what with."""
    world, scenario = meet(request), request.scenario
    return replace(world, mesh=build_mesh(scenario.layout, world.rank, shape_of(scenario).tied))


def meet(request: RankRequest) -> World:
    """Select the device and join the other ranks, by the environment that torchrun sets.

    One rank with unsharded parameters has nobody to talk to and gets no process group. There is no `leave`: a gloo
    group that is torn down while a DDP reducer is still alive can deadlock, so a rank ends by `os._exit` instead.
    """
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _TORCHRUN)
    layout = request.scenario.layout
    if size != layout.world:
        raise BadInput(f"scenario {request.scenario.key} needs {layout.world} ranks, this launch has {size}")
    if request.device == "cuda":
        if local >= torch.cuda.device_count():
            raise DeviceError(f"rank {rank} is number {local} on its node, which has {torch.cuda.device_count()} GPUs")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    if not dist.is_initialized() and (size > 1 or layout.sharding is not Sharding.NONE):
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(seconds=request.deadline_s + _BEYOND_DEADLINE_S),
            device_id=device if device.type == "cuda" else None,
        )
    return World(rank=rank, size=size, device=device)
