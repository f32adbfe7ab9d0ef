"""GPUs on the PCI bus, from sysfs: what is plugged in, whether or not a driver answers for it."""

from __future__ import annotations

import os
from typing import NamedTuple

PCI_DEVICES = "/sys/bus/pci/devices"
VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD"}

_VGA, _DISPLAY, _ACCELERATOR = 0x0300, 0x03, 0x1200


class PciGpu(NamedTuple):
    address: str
    """As sysfs writes it: ``0000:17:00.0``."""
    vendor: str


def gpus(root: str | os.PathLike[str] = PCI_DEVICES) -> tuple[PciGpu, ...]:
    """Display and 3D controllers of GPU vendors that can train; empty where there is no sysfs.

    AMD's VGA class is left out: it is the graphics inside a CPU or a desktop card, while Instinct boards are display
    controllers or, from MI300 on, processing accelerators.
    """
    found = []
    for address in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        vendor, class_ = (_hex(os.path.join(root, address, file)) for file in ("vendor", "class"))
        if vendor not in VENDORS or class_ is None:
            continue
        kind = class_ >> 8
        is_display = kind >> 8 == _DISPLAY and not (VENDORS[vendor] == "AMD" and kind == _VGA)
        if is_display or (VENDORS[vendor] == "AMD" and kind == _ACCELERATOR):
            found.append(PciGpu(address, VENDORS[vendor]))
    return tuple(found)


def sysfs_address(bus_id: str) -> str:
    """NVML's ``00000000:17:00.0`` as sysfs writes it, ``0000:17:00.0``: four digits of domain unless it needs more."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _hex(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read(), 16)
    except (OSError, ValueError):
        return None  # unplugged while we look, or not a PCI device's folder
