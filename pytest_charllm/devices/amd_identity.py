"""AMD GPUs as programs see them, and the physical packages they are parts of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_charllm.devices.amd_calls import AmdError, call, number, optional
from pytest_charllm.hardware.catalogue import match_name


class Die(NamedTuple):
    """One GPU as programs see it: a die of an MI250, a partition of an MI300, or a whole board.

    `hip_id` is its place in HIP's own order, None where this amdsmi does not tell.
    """

    handle: Any
    uuid: str
    name: str
    pci: str
    hip_id: int | None = None
    serial: str | None = None


def dies(smi: Any) -> list[Die]:
    """Every GPU that amdsmi lists, in the order of the PCI bus. Raises `AmdError`."""
    found = [_die(smi, handle) for handle in call(smi, "amdsmi_get_processor_handles")]
    return sorted(found, key=lambda die: die.pci)


def packages(found: Sequence[Die]) -> list[tuple[Die, ...]]:
    """The physical packages, each with its parts in the order of the PCI bus.

    Partitions of one board differ in the PCI function alone. The two dies of an MI250 have buses of their own: the
    serial number of the board holds them together, else their being next to each other.
    """
    boards: dict[str, list[Die]] = {}
    for die in found:
        boards.setdefault(die.pci.rpartition(".")[0], []).append(die)
    units = [tuple(parts) for parts in boards.values()]
    joined: list[tuple[Die, ...]] = []
    for name in dict.fromkeys(unit[0].name for unit in units):
        same = [unit for unit in units if unit[0].name == name]
        hardware = match_name(name)
        joined += _joined(same, hardware.gpus_per_package if hardware is not None else 1)
    return sorted(joined, key=lambda parts: parts[0].pci)


def _joined(units: list[tuple[Die, ...]], size: int) -> list[tuple[Die, ...]]:
    if size == 1:
        return units
    by_serial: dict[str | None, list[tuple[Die, ...]]] = {}
    for unit in units:
        by_serial.setdefault(unit[0].serial, []).append(unit)
    if None not in by_serial and all(len(group) == size for group in by_serial.values()):
        groups = list(by_serial.values())
    else:
        groups = [units[first : first + size] for first in range(0, len(units), size)]
    return [tuple(die for unit in group for die in unit) for group in groups]


def _die(smi: Any, handle: Any) -> Die:
    asic = optional(smi, "amdsmi_get_gpu_asic_info", handle) or {}
    board = optional(smi, "amdsmi_get_gpu_board_info", handle) or {}
    name, serial = asic.get("market_name"), board.get("product_serial")
    return Die(
        handle=handle,
        uuid=str(call(smi, "amdsmi_get_gpu_device_uuid", handle)),
        name=str(name) if name and name != "N/A" else str(board.get("product_name", "AMD GPU")),
        pci=str(call(smi, "amdsmi_get_gpu_device_bdf", handle)).lower(),
        hip_id=_hip_id(smi, handle),
        serial=str(serial) if serial and serial != "N/A" else None,
    )


def _hip_id(smi: Any, handle: Any) -> int | None:
    """ROCm 6.4 tells it; before, KFD's node numbers are in the same order."""
    for function, key in (("amdsmi_get_gpu_enumeration_info", "hip_id"), ("amdsmi_get_gpu_kfd_info", "node_id")):
        try:
            told = number(call(smi, function, handle).get(key))
        except AmdError:
            continue
        if told is not None:
            return int(told)
    return None
