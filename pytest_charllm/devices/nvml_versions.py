"""The versions of NVIDIA's kernel module and library, for when they do not fit and NVML tells neither."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path("/")


def versions(root: Path = _ROOT) -> str:
    """``kernel module 570.1, library 580.2``, as far as either can be found; empty where neither can."""
    found = [
        f"{what} {version}"
        for what, version in (("kernel module", _module(root)), ("library", _library(root)))
        if version is not None
    ]
    return ", ".join(found)


def _module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None


def _library(root: Path) -> str | None:
    """The file that this process has loaded carries the version in its name."""
    try:
        maps = (root / "proc/self/maps").read_text()
    except OSError:
        return None
    match = re.search(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)$", maps, re.MULTILINE)
    return match[1] if match else None
