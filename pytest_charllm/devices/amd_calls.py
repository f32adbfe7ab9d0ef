"""Loading and calling amdsmi: every refusal is one exception, every sentinel is missing, nothing reaches stdout."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_charllm.errors import DeviceError

STATUS = {
    1: "INVAL",
    2: "NOT_SUPPORTED",
    8: "TIMEOUT",
    9: "RETRY",
    10: "NO_PERM",
    30: "BUSY",
    31: "NOT_FOUND",
    32: "NOT_INIT",
    34: "DRIVER_NOT_LOADED",
    40: "NO_DATA",
}
"""Names of the codes met so far, from AMD's `amdsmi.h`."""
ABSENT = 2
UNKNOWN = 0xFFFFFFFF
"""Of an exception that carries no code."""
LOST = frozenset({31})
DRIVER_NOT_LOADED = 34
REMEDIES = {
    10: "put this user into the groups render and video",
    31: "the GPU is gone: look into dmesg, then reset it or reboot",
    34: "load the amdgpu kernel module and look into dmesg",
}
SENTINELS = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""All ones of 16, 32 and 64 bits: the firmware has no such value."""
GENERATIONS = {24: "6.1 to 6.3", 25: "6.4", 26: "7"}
"""Library generation -> ROCm. Structures changed their layout between them, so that the wrong binding reads garbage."""
_FIRST_GENERATION = 20


class AmdError(Exception):
    """amdsmi said no: `code` is its status."""

    def __init__(self, code: int, said: str = "") -> None:
        super().__init__(said if code == UNKNOWN else f"{STATUS.get(code, said or 'status')} ({code})")
        self.code = code

    def explain(self, what: str) -> str:
        remedy = REMEDIES.get(self.code)
        return f"{what}: {self}" + (f": {remedy}" if remedy else "")


def load_amdsmi(rocm: Path | None = None) -> Any:
    """The module `amdsmi`, ROCm's own copy before one from PyPI; raises `DeviceError` with the remedy.

    What it prints while it is imported goes to stderr. It may fail in ways that no import should (KeyError, OSError).
    """
    copy = (rocm or Path(os.environ.get("ROCM_PATH") or "/opt/rocm")) / "share" / "amd_smi"
    if copy.is_dir() and str(copy) not in sys.path:
        sys.path.insert(0, str(copy))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module("amdsmi")
    except ModuleNotFoundError as error:
        if error.name == "amdsmi":
            raise DeviceError(
                "amdsmi is not installed: install ROCm's amd-smi-lib, or pip install 'pytest-charllm[amd]'"
            ) from None
        raise DeviceError(f"amdsmi cannot be imported (no module {error.name}): pip install {error.name}") from None
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DeviceError(
            f"amdsmi cannot be imported ({said}): install the amdsmi of this ROCm, from {copy} or the same version"
        ) from None


def start(smi: Any) -> str:
    """Start the library; its version for the record. Raises `AmdError`, and `DeviceError` where binding and library
    are of different generations."""
    try:
        version = call(smi, "amdsmi_get_lib_version")
    except AmdError:
        version = {}
    refused = mismatch(_binding_version(smi), version)
    if refused is not None:
        raise DeviceError(refused)
    call(smi, "amdsmi_init", smi.AmdSmiInitFlags.INIT_AMD_GPUS)
    return f"amdsmi {_dotted(version)}" if version else "amdsmi"


def mismatch(binding: str | None, library: Mapping[str, Any]) -> str | None:
    """Why this binding must not be used on this library, or None. Versions that tell nothing are let pass."""
    if not library or binding is None or not binding[:1].isdigit():
        return None
    found = int(library.get("year") or library.get("major") or 0)
    wanted = _generation(binding)
    if wanted is None or found < _FIRST_GENERATION or wanted == found:
        return None
    rocm = GENERATIONS.get(found, "a newer one")
    return (
        f"amdsmi {binding} does not fit the library {_dotted(library)} (ROCm {rocm}), its numbers would be garbage: "
        f"use the copy in /opt/rocm/share/amd_smi, or pip install amdsmi of that ROCm version"
    )


def call(smi: Any, function: str, *args: Any) -> Any:
    """The function's answer; raises `AmdError`, also where the binding is too old to have the function."""
    known = getattr(smi, function, None)
    if known is None:
        raise AmdError(ABSENT)
    try:
        return known(*args)
    except AttributeError as error:  # a symbol that this library does not have
        raise AmdError(ABSENT, str(error)) from None
    except Exception as error:
        code = getattr(error, "get_error_code", None)
        status = abs(int(code())) if code is not None else UNKNOWN
        raise AmdError(status, f"{type(error).__name__}: {error}".splitlines()[0]) from None


def optional(smi: Any, function: str, *args: Any) -> Any | None:
    """As `call`, with None for a refusal: for what is nice to have on record."""
    try:
        return call(smi, function, *args)
    except AmdError:
        return None


def number(answer: Any) -> float | None:
    """A value that is one; None for "N/A", for all ones, and for whatever else is no number."""
    if isinstance(answer, bool):
        return float(answer)
    if not isinstance(answer, int | float) or answer in SENTINELS:
        return None
    return float(answer)


def numbers(answer: Any) -> list[float]:
    """Those of a list that are numbers."""
    return [value for each in answer if (value := number(each)) is not None] if isinstance(answer, list) else []


def _generation(binding: str) -> int | None:
    """Of a binding: ROCm's own copy carries the library's number, the wheels on PyPI carry ROCm's."""
    major, minor = (int(part) if part.isdigit() else 0 for part in (*binding.split("."), "0")[:2])
    if major >= _FIRST_GENERATION:
        return major
    return {6: 24 if minor <= 3 else 25, 7: 26}.get(major)


def _binding_version(smi: Any) -> str | None:
    version = getattr(smi, "__version__", None)
    if isinstance(version, str) and version:
        return version
    try:
        return metadata.version("amdsmi")
    except metadata.PackageNotFoundError:
        return None


def _dotted(version: Mapping[str, Any]) -> str:
    return ".".join(str(version[part]) for part in ("year", "major", "minor", "release") if part in version)
