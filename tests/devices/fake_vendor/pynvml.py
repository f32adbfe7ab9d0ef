# ruff: noqa: N802
"""In the place of nvidia-ml-py: keeps no card, writes every call to the file that FAKE_NVML names.

FAKE_NVML_REFUSES is a JSON object of function -> return code.
"""

import json
import os
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def _called(function: str, *args: Any) -> None:
    with open(os.environ["FAKE_NVML"], "a") as file:
        file.write(json.dumps([function, *args]) + "\n")
    code = json.loads(os.environ.get("FAKE_NVML_REFUSES", "{}")).get(function)
    if code is not None:
        raise NVMLError(code)


def nvmlInit() -> None:
    _called("nvmlInit")


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    return uuid


def nvmlDeviceSetGpuLockedClocks(handle: str, low: int, high: int) -> None:
    _called("nvmlDeviceSetGpuLockedClocks", handle, low, high)


def nvmlDeviceResetGpuLockedClocks(handle: str) -> None:
    _called("nvmlDeviceResetGpuLockedClocks", handle)
