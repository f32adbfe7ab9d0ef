"""The environment and the command line of a launch: what torchrun and its ranks inherit, and what they must not."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.launch.names import LOGS, REQUEST, REQUEST_PATH
from pytest_charllm.launch.request import LaunchRequest

_SCRUBBED_PREFIXES = ("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_", "PYTEST_", "COV_", "COVERAGE_", "CHARLLM_")
_SCRUBBED = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHON_EXEC",
})  # fmt: skip

_RELEVANT_PREFIXES = (
    "CUDA_", "NCCL_", "NVIDIA_", "NVTE_", "TORCH", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "KMP_", "GLOO_", "HIP_",
    "HSA_", "ROCR_", "RCCL_", "UCX_", "FI_", "DS_", "DNNL_", "PYTHON", "CHARLLM_",
)  # fmt: skip
_RELEVANT = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_CONF", "CC", "CXX"})
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "COOKIE")

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Two names of one setting; older versions of torch know only the second."""
_GPU_RANK_THREADS = 8
"""Host threads a GPU rank gets at most: enough for the optimizer and data, few enough that eight ranks share a host."""


def child_environment(request: LaunchRequest, base: Mapping[str, str]) -> dict[str, str]:
    """`base` without what would steer torchrun behind our back, with everything a launch depends on made explicit.

    ``PET_*`` fills torchrun options that were not given, the rendezvous variables of an outer job name another job's
    ranks. ``PYTHONPATH`` and whatever else the site sets (``NCCL_*``) passes through untouched.
    """
    environment = {
        name: value for name, value in base.items() if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    directory, cache = request.directory.absolute(), (request.cache_dir / request.scenario.key).absolute()
    environment |= path_variables(str(directory), str(cache)) | _set_variables(request)
    return _default_variables(request, base) | environment


def path_variables(directory: str, cache: str) -> dict[str, str]:
    """What tells a launch its places: its folder, and compiler caches that are cold in a scenario's first launch."""
    return {
        REQUEST_PATH: f"{directory}/{REQUEST}",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{directory}/nccl_trace_rank_",
    }


def _set_variables(request: LaunchRequest) -> dict[str, str]:
    """What every launch sets, whatever was there: all of it is part of what is measured."""
    variables = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # Ranks that ignore SIGTERM: newer versions of torchrun then kill them as soon as we would.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if request.device == "cpu":
        return variables | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if CATALOGUE[request.machine.variant].vendor == "amd":
        return variables  # The masks of the site are in HIP's own order already, and HIP takes no UUID of amdsmi's.
    return variables | {"CUDA_VISIBLE_DEVICES": ",".join(request.device_uuids)}


def _default_variables(request: LaunchRequest, base: Mapping[str, str]) -> dict[str, str]:
    """What a launch sets where the site has not: a site's own choice is part of the stack under test."""
    if request.device == "cpu":
        return {}
    threads = max(1, min(_GPU_RANK_THREADS, len(os.sched_getaffinity(0)) // request.scenario.layout.world))
    variables = {
        # Flight recorder: the last collectives of every rank, written when NCCL's watchdog gives up.
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    if not any(name in base for name in _ALLOCATOR):
        variables |= dict.fromkeys(_ALLOCATOR, "expandable_segments:True")
    return variables


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that can change what is measured, sorted. Nothing that looks like a secret."""
    return {
        name: environment[name]
        for name in sorted(environment)
        if (name in _RELEVANT or name.startswith(_RELEVANT_PREFIXES)) and not any(s in name.upper() for s in _SECRET)
    }


def torchrun_arguments(world: int, job: str, logs: str) -> list[str]:
    """Everything after ``python``: every option is given, so that no ``PET_*`` variable and no new default counts.

    `job` names the folder of logs below `logs`: ``<logs>/<job>_<random>/attempt_0/<rank>/stderr.log``.
    """
    return [
        "-m", "torch.distributed.run",
        "--nnodes", "1",
        "--nproc-per-node", str(world),
        # A store inside the agent on a port the kernel picks: no port to race for, and no name to look up.
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0",
        "--rdzv-id", job,
        "--local-addr", "localhost",
        "--max-restarts", "0",
        "--monitor-interval", "0.1",
        "--log-dir", logs,
        "--redirects", "3",
        "--tee", "0",
        "-m", "pytest_charllm.launch.rank",
    ]  # fmt: skip


def launch_command(request: LaunchRequest) -> list[str]:
    """torchrun's agent as this project starts it: bound to the life of the launching process."""
    logs = str(request.directory.absolute() / LOGS)
    arguments = torchrun_arguments(request.scenario.layout.world, request.id, logs)
    return [sys.executable, "-m", "pytest_charllm.launch.agent", *arguments]
