"""Installing into somebody's environment: an NGC or ROCm container keeps the torch it came with."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

CONTAINER_TORCH = ["2.9.0a0+50eac811a6.nv25.09", "2.11.0a0+eb65b36914.nv26.01",
                   "2.11.0+cu130", "2.10.0+rocm7.0", "2.13.0+cpu"]  # fmt: skip


@pytest.mark.parametrize("version", CONTAINER_TORCH)
def test_requirement_accepts_the_torch_of_containers(version: str) -> None:
    """Vendor containers ship pre-release torch builds; a plain ``>=2.11`` would make pip replace them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [r for text in project["dependencies"] if (r := Requirement(text)).name == "torch"]
    assert torch.specifier.contains(version, prereleases=True)


def test_install_leaves_the_installed_torch_alone() -> None:
    """pip's own resolver, asked without installing, must not want another torch than the one that is here."""
    import torch

    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-build-isolation", "--no-index",
               "--report", "-", "-e", str(ROOT)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    wanted = {item["metadata"]["name"].lower() for item in json.loads(done.stdout)["install"]}
    assert "torch" not in wanted, f"pip would replace torch {torch.__version__}"
