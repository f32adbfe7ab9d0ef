"""Errors that the NVIDIA driver reports of its GPUs (XIDs). There is no history: only who waits hears of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from pytest_charllm.devices.nvml_calls import NvmlError, call
from pytest_charllm.devices.nvml_fields import TIMEOUT
from pytest_charllm.records.telemetry import EventLine

_XID = 0x8
MEANINGS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    48: "double bit memory error",
    63: "memory page or row remapped",
    64: "remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}


class XidEvents:
    """Registered for every handle at once. Raises `NvmlError` where the driver has no such events."""

    def __init__(self, nvml: Any, handles: Mapping[str, Any], clock: Callable[[], int]) -> None:
        self._nvml, self._clock = nvml, clock
        self._uuids = {_address(handle): uuid for uuid, handle in handles.items()}
        self._set = call(nvml, "nvmlEventSetCreate")
        for handle in handles.values():
            call(nvml, "nvmlDeviceRegisterEvents", handle, _XID, self._set)

    def wait(self, timeout_s: float) -> tuple[EventLine, ...]:
        """The next one, or none in time; raises `NvmlError`."""
        try:
            event = call(self._nvml, "nvmlEventSetWait_v2", self._set, round(timeout_s * 1000))
        except NvmlError as refused:
            if refused.code == TIMEOUT:
                return ()
            raise
        number = event.eventData
        meaning = f", {MEANINGS[number]}" if number in MEANINGS else ""
        uuid = self._uuids.get(_address(event.device))
        return (EventLine(kind="xid", mono_ns=self._clock(), text=f"Xid {number}{meaning}", uuid=uuid),)


def _address(handle: Any) -> Any:
    """What makes two handles the same: the pointer's target, not the object that holds it."""
    return handle if isinstance(handle, str) else ctypes.cast(handle, ctypes.c_void_p).value
