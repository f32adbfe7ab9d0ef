"""CUDA_VISIBLE_DEVICES as CUDA reads it, applied to the GPUs that NVML lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware.machine import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"
_HIDE_ALL = ("", "-1", "NoDevFiles")


def hides_all(environ: Mapping[str, str]) -> bool:
    """Whether the variable is set and leaves no GPU: the usual way to ask for a CPU run."""
    value = environ.get(VARIABLE)
    return value is not None and value.split(",")[0].strip() in _HIDE_ALL


def visible(devices: tuple[Device, ...], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The GPUs a CUDA program sees, in its order. `devices` are in PCI order.

    Raises `DeviceError` naming what cannot be understood, where CUDA itself would silently see fewer GPUs. Only -1
    ends the list as it does for CUDA.
    """
    value = environ.get(VARIABLE)
    if value is None:
        return devices
    chosen: list[Device] = []
    for token in (part.strip() for part in value.split(",")):
        if token == "-1":
            break
        device = _by_index(int(token), devices, environ) if token.isdecimal() else _by_uuid(token, devices)
        if device in chosen:
            raise DeviceError(f"{VARIABLE}={value} names {device.uuid} twice: name each GPU once")
        chosen.append(device)
    return tuple(chosen)


def _by_index(index: int, devices: tuple[Device, ...], environ: Mapping[str, str]) -> Device:
    if index >= len(devices):
        raise DeviceError(f"{VARIABLE} names GPU {index}, but the driver opens only {len(devices)} here (from 0)")
    if environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({device.name for device in devices}) > 1:
        # CUDA would number these by speed, NVML numbers them by PCI address.
        raise DeviceError(
            f"{VARIABLE} index {index} is ambiguous among different GPUs: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return devices[index]


def _by_uuid(token: str, devices: tuple[Device, ...]) -> Device:
    if token.startswith("MIG-"):
        raise DeviceError(f"{VARIABLE} names the MIG instance {token}: power and heat are of the whole GPU, use that")
    matches = [device for device in devices if token.startswith("GPU-") and device.uuid.startswith(token)]
    if len(matches) == 1:
        return matches[0]
    here = ", ".join(device.uuid for device in devices) or "none"
    what = "several GPUs" if matches else "no GPU"
    raise DeviceError(f"{VARIABLE} entry {token!r} names {what}; here are: {here}")
