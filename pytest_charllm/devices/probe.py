"""The child process that asks the driver what is here, so that one that hangs or dies takes nothing of ours along.

``python -m pytest_charllm.devices.probe machine nvidia|amd|simulated:PROFILE:GPUS`` and ``... processes UUID...``
print one line of JSON each.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
from msgspec.structs import replace

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.amd_calls import DRIVER_NOT_LOADED, AmdError, load_amdsmi, start
from pytest_charllm.devices.amd_calls import optional as optional_amd
from pytest_charllm.devices.amd_identity import Die, dies
from pytest_charllm.devices.amd_package import power_cap_w
from pytest_charllm.devices.nvml_calls import NvmlError, call, load_nvml, optional, text
from pytest_charllm.devices.nvml_islands import islands
from pytest_charllm.devices.pci import sysfs_address
from pytest_charllm.devices.process import claim_stdout, die_with_parent
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware.machine import Device


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the driver knows of this node: NVIDIA's in the order of the PCI bus, AMD's in that of HIP where `hip_order`.

    `error` set: the library does not start; `absent` tells a missing driver from a broken one. `unopened` GPUs are on
    the node, but not given to us.
    """

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    unopened: tuple[str, ...] = ()
    error: str | None = None
    absent: bool = False
    hip_order: bool = False


class ComputeProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that computes on a GPU. The driver may withhold name and memory (bytes)."""

    uuid: str
    pid: int
    name: str | None = None
    memory_bytes: int | None = None


def find(nvml: Any) -> Found:
    """All GPUs that NVML opens for us, or why it does not start."""
    try:
        call(nvml, "nvmlInit")
        count = call(nvml, "nvmlDeviceGetCount")
    except NvmlError as refused:
        absent = refused.code in (table.LIBRARY_NOT_FOUND, table.DRIVER_NOT_LOADED)
        return Found(error=refused.explain("NVML does not start"), absent=absent)
    opened, unopened = [], []
    for index in range(count):
        try:
            handle = call(nvml, "nvmlDeviceGetHandleByIndex", index)
            opened.append((handle, _device(nvml, handle)))
        except NvmlError as refused:
            unopened.append(refused.explain(f"GPU {index}"))
    numbers = islands(nvml, [handle for handle, _ in opened])
    driver, cuda = optional(nvml, "nvmlSystemGetDriverVersion"), optional(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    return Found(
        devices=tuple(replace(device, island=island) for (_, device), island in zip(opened, numbers, strict=True)),
        unopened=tuple(unopened),
        driver=text(driver) if driver else None,
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    )


def _device(nvml: Any, handle: Any) -> Device:
    pci = optional(nvml, "nvmlDeviceGetPciInfo", handle)
    memory = optional(nvml, "nvmlDeviceGetMemoryInfo", handle)
    limit_mw = optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    mig = optional(nvml, "nvmlDeviceGetMigMode", handle)
    vbios = optional(nvml, "nvmlDeviceGetVbiosVersion", handle)
    return Device(
        uuid=text(call(nvml, "nvmlDeviceGetUUID", handle)),
        name=text(call(nvml, "nvmlDeviceGetName", handle)),
        pci=sysfs_address(text(pci.busId)) if pci else None,
        memory_bytes=memory.total if memory else None,
        power_limit_w=limit_mw / 1000 if limit_mw else None,
        partition="mig" if mig and mig[0] else None,
        vbios=text(vbios) if vbios else None,
    )


def find_amd(smi: Any) -> Found:
    """All GPUs that amdsmi lists, each die and partition by itself, or why it does not start."""
    try:
        start(smi)
        found = dies(smi)
    except AmdError as refused:
        return Found(error=refused.explain("amdsmi does not start"), absent=refused.code == DRIVER_NOT_LOADED)
    hip_order = all(die.hip_id is not None for die in found)
    if hip_order:
        found.sort(key=lambda die: die.hip_id or 0)
    driver = optional_amd(smi, "amdsmi_get_gpu_driver_info", found[0].handle) if found else None
    return Found(
        devices=tuple(_amd_device(smi, die) for die in found),
        driver=str(driver["driver_version"]) if driver else None,
        hip_order=hip_order,
    )


def _amd_device(smi: Any, die: Die) -> Device:
    kinds = getattr(smi, "AmdSmiMemoryType", None)
    memory = optional_amd(smi, "amdsmi_get_gpu_memory_total", die.handle, kinds["VRAM"]) if kinds else None
    vbios = optional_amd(smi, "amdsmi_get_gpu_vbios_info", die.handle)
    return Device(
        uuid=die.uuid,
        name=die.name,
        pci=die.pci,
        memory_bytes=int(memory) if memory else None,
        power_limit_w=power_cap_w(smi, die.handle, "power_cap"),
        partition=_partition(optional_amd(smi, "amdsmi_get_gpu_compute_partition", die.handle)),
        vbios=str(vbios["version"]) if vbios and vbios.get("version") not in (None, "", "N/A") else None,
    )


def _partition(mode: str | None) -> str | None:
    """SPX is the whole board, so it is no partition."""
    return mode.lower() if mode and mode not in ("N/A", "SPX") else None


def processes(nvml: Any, uuids: tuple[str, ...]) -> list[ComputeProcess]:
    """Compute processes on these GPUs; raises `DeviceError` where NVML does not tell."""
    found = []
    try:
        call(nvml, "nvmlInit")
        for uuid in uuids:
            handle = call(nvml, "nvmlDeviceGetHandleByUUID", uuid)
            for process in call(nvml, "nvmlDeviceGetComputeRunningProcesses", handle):
                name = optional(nvml, "nvmlSystemGetProcessName", process.pid)
                found.append(
                    ComputeProcess(
                        uuid=uuid,
                        pid=process.pid,
                        name=text(name) if name else None,
                        memory_bytes=process.usedGpuMemory or None,
                    )
                )
    except NvmlError as refused:
        raise DeviceError(refused.explain(f"NVML does not list the processes on {', '.join(uuids)}")) from None
    return found


def main(argv: list[str]) -> int:
    out = claim_stdout()
    die_with_parent(signal.SIGKILL)
    what, *names = argv
    answer: Found | list[ComputeProcess]
    try:
        answer = processes(load_nvml(), tuple(names)) if what == "processes" else _find(names[0] if names else "nvidia")
    except DeviceError as error:
        if what == "processes":
            print(error, file=sys.stderr)
            return 1
        answer = Found(error=str(error), absent=True)
    os.write(out, msgspec.json.encode(answer) + b"\n")
    return 0


def _find(where: str) -> Found:
    kind, *simulated = where.split(":")
    if kind == "simulated":
        simulation = Simulation(simulated[0], tuple(f"GPU-simulated-{i}" for i in range(int(simulated[1]))))
        vendor, library = simulation.profile.vendor, simulation.module
    else:
        vendor, library = kind, load_amdsmi() if kind == "amd" else load_nvml()
    return find_amd(library) if vendor == "amd" else find(library)


if __name__ == "__main__":
    # Not the ordinary end: a library's exit handlers may hang in the same driver.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
