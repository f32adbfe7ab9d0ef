"""GPUs on the PCI bus, from sysfs: what is plugged in, whether or not a driver answers for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PCI_DEVICES = Path("/sys/bus/pci/devices")
VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD"}

_VGA, _DISPLAY, _ACCELERATOR = 0x0300, 0x03, 0x1200


class PciGpu(NamedTuple):
    address: str
    """As sysfs writes it: ``0000:17:00.0``."""
    vendor: str


def gpus(root: Path = PCI_DEVICES) -> tuple[PciGpu, ...]:
    """Display and 3D controllers of GPU vendors that can train; empty where there is no sysfs.

    AMD's VGA class is left out: it is the graphics inside a CPU or a desktop card, while Instinct boards are display
    controllers or, from MI300 on, processing accelerators.
    """
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else ():
        vendor, class_ = _hex(device / "vendor"), _hex(device / "class")
        if vendor not in VENDORS or class_ is None:
            continue
        kind = class_ >> 8
        is_display = kind >> 8 == _DISPLAY and not (VENDORS[vendor] == "AMD" and kind == _VGA)
        if is_display or (VENDORS[vendor] == "AMD" and kind == _ACCELERATOR):
            found.append(PciGpu(device.name, VENDORS[vendor]))
    return tuple(found)


def sysfs_address(bus_id: str) -> str:
    """NVML's ``00000000:17:00.0`` as sysfs writes it, ``0000:17:00.0``: four digits of domain unless it needs more."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _hex(path: Path) -> int | None:
    try:
        return int(path.read_text(), 16)
    except (OSError, ValueError):
        return None  # unplugged while we look, or not a PCI device's folder
