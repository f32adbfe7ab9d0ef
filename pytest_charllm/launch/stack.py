"""The software combination of one launch."""

from __future__ import annotations

import msgspec

from pytest_charllm.hardware import Machine
from pytest_charllm.records import RankReport, Stack


def launch_stack(reports: tuple[RankReport, ...], machine: Machine) -> Stack:
    """What the first rank imported, and what only the machine knows: driver, VBIOS, kernel, container.

    Several VBIOS versions are all named, since a mixed node is a stack of its own.
    """
    software = reports[0].software if reports else Stack()
    vbios = sorted({device.vbios for device in machine.devices if device.vbios is not None})
    return msgspec.structs.replace(
        software,
        driver=machine.driver or software.driver,
        vbios=", ".join(vbios) or software.vbios,
        kernel=machine.kernel or software.kernel,
        container=machine.container or software.container,
    )
