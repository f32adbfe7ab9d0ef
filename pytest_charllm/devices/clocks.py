"""The only code that sets anything on a device: a guard process that locks SM clocks for as long as somebody wants it.

``python -m pytest_charllm.devices.clocks MHZ UUID...`` locks, answers one line of JSON, and waits. Whatever ends the
wait, it gives the clocks back to the driver and says so: its stdin is closed, a signal other than SIGKILL comes, or the
process that started it is gone, however that happened. ``0`` in the place of the clock only gives them back.

Nothing imports this module. NVIDIA alone; not run on hardware yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from pytest_charllm.devices.nvml_calls import NvmlError, call, load_nvml
from pytest_charllm.devices.process import claim_stdout
from pytest_charllm.errors import DeviceError

NO_PERMISSION = 4
RESET_TRIES = 4
RESET_PAUSE_S = 0.5
_REMEDY = "locking clocks needs root or CAP_SYS_ADMIN, in a container on the host's side"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def main(arguments: Sequence[str]) -> int:
    """0 once the clocks are given back, 1 where they could not be locked, or given back."""
    answers, ended = claim_stdout(), _signals()
    parent = _watch_parent()
    mhz, uuids = int(arguments[0]), arguments[1:]
    touched: list[Any] = []
    nvml = None
    said: dict[str, object] = {}
    try:
        nvml = load_nvml()
        call(nvml, "nvmlInit")
        for uuid in uuids:
            handle = call(nvml, "nvmlDeviceGetHandleByUUID", uuid)
            if mhz:
                call(nvml, "nvmlDeviceSetGpuLockedClocks", handle, mhz, mhz)
            touched.append(handle)
        if mhz:
            _answer(answers, {"locked": mhz})
            select.select([0, ended, *parent], [], [])
    except NvmlError as refused:
        remedy = _REMEDY if refused.code == NO_PERMISSION else ""
        said = {"error": f"{refused}{f': {remedy}' if remedy else ''}"}
    except DeviceError as error:
        said = {"error": str(error)}
    finally:
        stuck = _give_back(nvml, touched)
    _answer(answers, said | ({"stuck": stuck} if stuck else {"given_back": len(touched)}))
    return 1 if stuck or said else 0


def _signals() -> int:
    """A descriptor that can be read once a signal has come that would have ended us without the clean-up."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for each in _ENDING:
        signal.signal(each, lambda signum, frame: None)
    return read


def _watch_parent() -> list[int]:
    """Readable once the process that started us is gone, also where somebody else still holds our stdin open."""
    with contextlib.suppress(OSError, AttributeError):  # gone already, or a kernel before 5.3: stdin tells
        return [os.pidfd_open(os.getppid())]
    return []


def _give_back(nvml: Any, handles: Sequence[Any]) -> str:
    """Why some clocks are still locked, or "". A driver that refuses is asked again for a while."""
    left = list(handles)
    for attempt in range(RESET_TRIES):
        refusals = []
        for handle in list(left):
            try:
                call(nvml, "nvmlDeviceResetGpuLockedClocks", handle)
                left.remove(handle)
            except NvmlError as refused:
                refusals.append(str(refused))
        if not left:
            return ""
        if attempt < RESET_TRIES - 1:
            time.sleep(RESET_PAUSE_S)
    return refusals[0]


def _answer(descriptor: int, said: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone
        os.write(descriptor, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
