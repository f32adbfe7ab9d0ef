"""What the host says of itself: processor, kernel, container. Files below `root`, so that tests can lay them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path("/")


def cpu_model(root: Path = _ROOT) -> str:
    """Model name with family and model, since virtual machines often mask the name; else the architecture."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    first: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    if "model name" not in first:
        return os.uname().machine
    if "cpu family" not in first or "model" not in first:
        return first["model name"]
    return f"{first['model name']}, family {first['cpu family']} model {first['model']}"


def kernel() -> str:
    return os.uname().release


def container(environ: Mapping[str, str], root: Path = _ROOT) -> str | None:
    """The kind of container we are in, with NVIDIA's image version where it says so; None outside of any."""
    kind = None
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        kind = "apptainer"
    elif (root / ".dockerenv").exists():
        kind = "docker"
    elif (root / "run/.containerenv").exists():
        kind = "podman"
    elif environ.get("container"):  # systemd's convention
        kind = environ["container"]
    elif "KUBERNETES_SERVICE_HOST" in environ:
        kind = "kubernetes"
    image = environ.get("NVIDIA_PYTORCH_VERSION")
    return f"{kind or 'container'}, nvidia pytorch {image}" if image else kind
