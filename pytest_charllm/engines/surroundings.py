"""What a rank's report starts from: whose it is, its device, the software that is loaded. Asks torch only where it is
loaded already."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_charllm.records import RankDevice, RankReport, RankRequest, Stack


def report_of(request: RankRequest, rank: int, world_size: int, **told: Any) -> RankReport:
    """The answer to a request from this process, on the device it computes on; `told`: fields of what was done."""
    cuda = cuda_device()
    return RankReport(
        nonce=request.nonce,
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        pass_=request.pass_,
        device=rank_device(cuda),
        software=software(cuda),
        **told,
    )


def cuda_device() -> int | None:
    """Index of the device this process computes on; None where it has no CUDA context (HIP's counts as one)."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else None


def rank_device(cuda: int | None) -> RankDevice:
    """The device of that index, None for the CPU."""
    if cuda is None:
        return RankDevice(kind="cpu", name=_cpu_name())
    properties = _torch().cuda.get_device_properties(cuda)
    # Not in every version of torch, and None is honest where it is not.
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    pci = None if domain is None or bus is None or slot is None else f"{domain:08X}:{bus:02X}:{slot:02X}.0"
    return RankDevice(kind="cuda", name=properties.name, uuid=f"GPU-{properties.uuid}", pci=pci)


def software(cuda: int | None) -> Stack:
    """The versions that this process works with; torch's own only where it has loaded it."""
    torch = sys.modules.get("torch")
    cudnn = nccl = None
    if cuda is not None:
        cudnn = str(_torch().backends.cudnn.version())
        nccl = ".".join(map(str, _torch().cuda.nccl.version())) if _torch().distributed.is_nccl_available() else None
    return Stack(
        torch=None if torch is None else str(torch.__version__),
        cuda=None if torch is None else torch.version.cuda,
        rocm=None if torch is None else torch.version.hip,
        nccl=nccl,
        cudnn=cudnn,
        triton=_version("triton"),
        deepspeed=_loaded("deepspeed"),
        python=platform.python_version(),
    )


def _torch() -> Any:
    return sys.modules["torch"]


def _loaded(package: str) -> str | None:
    return _version(package) if package in sys.modules else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
