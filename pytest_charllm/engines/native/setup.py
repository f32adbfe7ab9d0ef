"""What both passes start from: the model in training, and what a report says before the first step."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_charllm.engines.native.attention import answering_backend
from pytest_charllm.engines.native.step import Step
from pytest_charllm.engines.native.world import World
from pytest_charllm.engines.training import TrainingStep
from pytest_charllm.records import Phases, RankDevice, RankReport, RankRequest, Stack
from pytest_charllm.scenario import Precision, Scenario
from pytest_charllm.scenario.models import ModelShape

MakeStep = Callable[[RankRequest, ModelShape, int, World, torch.device], TrainingStep]
"""(request, shape, tokens of a sequence, world, device of the weights' generator) -> the model in training."""


@dataclass(frozen=True)
class Setup:
    """One request on one rank. `seq` in tokens; `import_s`: how long importing torch took."""

    request: RankRequest
    world: World
    shape: ModelShape
    seq: int
    import_s: float
    make_step: MakeStep = Step

    def build(self, generator_device: torch.device) -> tuple[TrainingStep, RankReport]:
        """The model in training, and a report that says all but what the pass itself will measure."""
        request, world, scenario = self.request, self.world, self.request.scenario
        began_s = time.perf_counter()
        step = self.make_step(request, self.shape, self.seq, world, generator_device)
        dtype = torch.bfloat16 if scenario.options.precision is Precision.BF16 else torch.float32
        backend = answering_backend(self.shape, scenario.training.microbatch, self.seq, dtype, world.device)
        world.synchronize()
        report = RankReport(
            nonce=request.nonce,
            rank=world.rank,
            world_size=world.size,
            host=socket.gethostname(),
            pid=os.getpid(),
            pass_=request.pass_,
            device=_device(world.device),
            tokens_per_step=scenario.global_batch * self.seq,
            parameters=step.parameter_count,
            attention_backend=backend,
            software=_software(world.device),
            phases=Phases(import_s=self.import_s, build_s=time.perf_counter() - began_s),
        )
        return step, report


def compile_cache_cold(scenario: Scenario) -> bool | None:
    """Whether the compiler starts with nothing in its cache; None where nothing is compiled. Ask before building."""
    if not scenario.options.compile:
        return None
    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return None if directory is None else not any(Path(directory).glob("*"))


def _device(device: torch.device) -> RankDevice:
    if device.type == "cpu":
        return RankDevice(kind="cpu", name=_cpu_name())
    properties = torch.cuda.get_device_properties(device)
    # Not in every version of torch, and None is honest where it is not.
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    pci = None if domain is None or bus is None or slot is None else f"{domain:08X}:{bus:02X}:{slot:02X}.0"
    return RankDevice(kind="cuda", name=properties.name, uuid=f"GPU-{properties.uuid}", pci=pci)


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _software(device: torch.device) -> Stack:
    cudnn = nccl = None
    if device.type == "cuda":
        cudnn = str(torch.backends.cudnn.version())
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None
    return Stack(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        nccl=nccl,
        cudnn=cudnn,
        triton=_version("triton"),
        # Installed everywhere, so only where it is at work.
        deepspeed=_version("deepspeed") if "deepspeed" in sys.modules else None,
        python=platform.python_version(),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
