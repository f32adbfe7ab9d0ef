"""The child process that asks NVML what is here, so that a driver that hangs or dies takes nothing of ours along.

``python -m pytest_charllm.devices.probe machine`` and ``... processes UUID...`` print one line of JSON each.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml_calls import NvmlError, call, load_nvml, optional, text
from pytest_charllm.devices.pci import sysfs_address
from pytest_charllm.devices.process import claim_stdout, die_with_parent
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware.machine import Device


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What NVML knows of this node, in its own order, which is that of the PCI bus.

    `error` set: NVML does not start; `absent` tells a missing driver from a broken one. `unopened` GPUs are on the
    node, but not given to us.
    """

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    unopened: tuple[str, ...] = ()
    error: str | None = None
    absent: bool = False


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
    devices, unopened = [], []
    for index in range(count):
        try:
            devices.append(_device(nvml, call(nvml, "nvmlDeviceGetHandleByIndex", index)))
        except NvmlError as refused:
            unopened.append(refused.explain(f"GPU {index}"))
    driver, cuda = optional(nvml, "nvmlSystemGetDriverVersion"), optional(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    return Found(
        devices=tuple(devices),
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
    what, *uuids = argv
    answer: Found | list[ComputeProcess]
    try:
        nvml = load_nvml()
        answer = processes(nvml, tuple(uuids)) if what == "processes" else find(nvml)
    except DeviceError as error:
        if what == "processes":
            print(error, file=sys.stderr)
            return 1
        answer = Found(error=str(error), absent=True)
    os.write(out, msgspec.json.encode(answer) + b"\n")
    return 0


if __name__ == "__main__":
    # Not the ordinary end: a library's exit handlers may hang in the same driver.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
