"""Finding the machine: what is plugged in, what the driver says, what the environment shows us of it."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from pytest_charllm.devices import host, pci
from pytest_charllm.devices.open import profile_of
from pytest_charllm.devices.probe import ComputeProcess, Found
from pytest_charllm.devices.process import descends, last_line, ours, run_bounded
from pytest_charllm.devices.visible import VARIABLE, hides_all, visible, visible_amd
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware.catalogue import match_name
from pytest_charllm.hardware.machine import Device, Machine

T = TypeVar("T")

PROBE = ours("pytest_charllm.devices.probe")
CPU_RANKS = 2
"""Without a GPU a node is two gloo ranks: the smallest number that communicates."""


def find_machine(
    *,
    environ: Mapping[str, str] = os.environ,
    pci_root: str | os.PathLike[str] = pci.PCI_DEVICES,
    probe: Sequence[str] = PROBE,
    timeout_s: float = 20.0,
) -> Machine:
    """The machine we run on. Loads no vendor library into this process.

    The cpu machine only where there is no GPU, or where CUDA_VISIBLE_DEVICES hides them all: a GPU whose driver does
    not answer raises `DeviceError`, and so do an unknown GPU model, different models on one node, and an entry of
    CUDA_VISIBLE_DEVICES that names no GPU here.
    """
    if hides_all(environ):
        return cpu_machine(environ)
    plugged = pci.gpus(pci_root)
    is_amd = bool(plugged) and all(gpu.vendor == "AMD" for gpu in plugged)
    try:
        found = _decode(_run((*probe, "machine", "amd" if is_amd else "nvidia"), timeout_s), Found)
    except DeviceError as error:
        raise _unusable(plugged, str(error)) from None
    if found.devices:
        devices = visible_amd(found.devices, environ, hip_order=found.hip_order) if is_amd else None
        if devices == ():
            return cpu_machine(environ)
        return _gpu_machine(found, visible(found.devices, environ) if devices is None else devices, environ)
    if plugged or found.unopened or (found.error and not found.absent):
        listed = "amdsmi lists no GPU" if is_amd else "NVML lists no GPU"
        raise _unusable(plugged, found.error or "; ".join(found.unopened) or listed)
    return cpu_machine(environ)


def simulated_machine(variant: str, gpus: int, *, probe: Sequence[str] = PROBE, timeout_s: float = 20.0) -> Machine:
    """A node of `gpus` simulated GPUs of this variant, found in the same way as a real one. Training runs on the CPU.

    Raises `BadInput` for a variant without a simulation.
    """
    found = _decode(_run((*probe, "machine", f"simulated:{profile_of(variant)}:{gpus}"), timeout_s), Found)
    return msgspec.structs.replace(_gpu_machine(found, found.devices, {}), simulated=True)


def cpu_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """This host as hardware ``cpu``, whatever GPUs it has."""
    return Machine(
        variant="cpu",
        gpus_per_node=CPU_RANKS,
        cpu_model=host.cpu_model(),
        host=socket.gethostname(),
        kernel=host.kernel(),
        container=host.container(environ),
    )


def foreign_processes(
    uuids: tuple[str, ...], *, probe: Sequence[str] = PROBE, timeout_s: float = 20.0, again_s: float = 1.0
) -> list[ComputeProcess]:
    """Processes that compute on these GPUs and that neither are nor descend from this one, in two looks `again_s`
    apart: who is seen once may be about to end.

    Raises `DeviceError` when the driver does not tell in time. Inside a container the driver may see only its own.
    """
    gpus = tuple(uuid for uuid in uuids if uuid.startswith("GPU-"))
    if not gpus:
        return []

    def look() -> list[ComputeProcess]:
        seen = _decode(_run((*probe, "processes", *gpus), timeout_s), list[ComputeProcess])
        # One that is not of this PID namespace is somebody's, too.
        return [process for process in seen if not descends(process.pid, os.getpid())]

    first = look()
    if not first:
        return []
    time.sleep(again_s)
    still = {process.pid for process in look()}
    return [process for process in first if process.pid in still]


def _gpu_machine(found: Found, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Machine:
    variants = [_variant(device) for device in devices]
    if len(set(variants)) > 1:
        listed = ", ".join(f"{count} x {variant}" for variant, count in sorted(Counter(variants).items()))
        raise DeviceError(f"different GPU models on this node: {listed}; choose GPUs of one model with {VARIABLE}")
    return Machine(
        variant=variants[0],
        gpus_per_node=len(devices),
        devices=devices,
        cpu_model=host.cpu_model(),
        host=socket.gethostname(),
        driver=found.driver,
        driver_cuda=found.driver_cuda,
        kernel=host.kernel(),
        container=host.container(environ),
    )


def _variant(device: Device) -> str:
    hardware = match_name(device.name)
    if hardware is None:
        raise DeviceError(f"GPU {device.name!r} ({device.uuid}) is not in the hardware catalogue: add it there")
    return hardware.variant


def _run(command: Sequence[str], timeout_s: float) -> bytes:
    try:
        finished = run_bounded(command, timeout_s)
    except TimeoutError as error:
        raise DeviceError(
            f"the driver does not answer ({error}): look for a hung GPU in dmesg, then reset it or reboot"
        ) from None
    if finished.code != 0:
        raise DeviceError(f"asking the driver failed (exit {finished.code}): {last_line(finished.stderr)}")
    return finished.stdout


def _decode(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise DeviceError(f"the device probe answered nonsense ({error}): {answer[:80]!r}") from None


def _unusable(plugged: Sequence[pci.PciGpu], why: str) -> DeviceError:
    seen = ""
    if plugged:
        vendors = " and ".join(sorted({gpu.vendor for gpu in plugged}))
        seen = f"{len(plugged)} {vendors} GPU(s) on the PCI bus ({plugged[0].address}), but "
    return DeviceError(f"{seen}{why} (or ask for the CPU: --gpu=cpu)")
