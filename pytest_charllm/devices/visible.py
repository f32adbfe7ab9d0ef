"""The masks by which an environment shows some GPUs only, as CUDA and ROCm read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware.machine import Device

VARIABLE = "CUDA_VISIBLE_DEVICES"
ROCR_VARIABLE, HIP_VARIABLE = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
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


def visible_amd(devices: tuple[Device, ...], environ: Mapping[str, str], *, hip_order: bool) -> tuple[Device, ...]:
    """The GPUs a ROCm program sees, in its order: first ROCR_VISIBLE_DEVICES, then, counted among those left,
    HIP_VISIBLE_DEVICES or, without it, CUDA_VISIBLE_DEVICES.

    `devices` are in HIP's own order where `hip_order`. Where they are not, a mask by number would choose blindly, and
    raises `DeviceError`; so does whatever names no GPU.
    """
    for variable in (ROCR_VARIABLE, HIP_VARIABLE if HIP_VARIABLE in environ else VARIABLE):
        value = environ.get(variable)
        if value is not None:
            devices = _masked(variable, value, devices, hip_order)
    return devices


def _masked(variable: str, value: str, devices: tuple[Device, ...], hip_order: bool) -> tuple[Device, ...]:
    if value.split(",")[0].strip() in _HIDE_ALL:
        return ()
    chosen: list[Device] = []
    for token in (part.strip() for part in value.split(",")):
        if token == "-1":
            break
        if token.isdecimal() and not hip_order and len(devices) > 1:
            raise DeviceError(
                f"{variable}={value}: this amdsmi does not tell the order in which ROCm numbers the GPUs: update to "
                f"ROCm 6.3 or newer, or unset it"
            )
        matches = [each for each in devices if token and token.lower() in _names_of(each)]
        if token.isdecimal() and not matches:
            matches = [devices[int(token)]] if int(token) < len(devices) else []
        if len(matches) != 1 or matches[0] in chosen:
            here = ", ".join(device.uuid for device in devices) or "none"
            raise DeviceError(f"{variable}={value}: {token!r} names no GPU, or one twice; left are: {here}")
        chosen += matches
    return tuple(chosen)


def _names_of(device: Device) -> tuple[str, ...]:
    """ROCm writes a UUID as GPU- and 16 digits, amdsmi in the long form."""
    plain = device.uuid.lower()
    return (plain, f"gpu-{plain}", f"gpu-{plain.replace('-', '')[-16:]}")


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
