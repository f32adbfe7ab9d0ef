"""Layouts of the study at their full size, as one rank of a world that no machine here has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fake_worlds.py"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """In a process of its own, since it is another world there."""
    command = [sys.executable, str(SCRIPT), "--world", "32", "64", "--model", "mixtral-8x7b", "llama3-70b"]
    command += ["--layout", "dp32+ep8", "pp2dp32+ep8", "pp16dp2", "pp32dp2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("layout", ["dp32+ep8", "pp2dp32+ep8", "pp16dp2"])
def test_a_full_size_layout_builds_and_steps(lines: list[str], layout: str) -> None:
    """Tiny models on four ranks do not show what breaks with many stages, large shapes, and groups of many sizes."""
    [line] = [line for line in lines if f" {layout} " in line]
    assert " stepped " in line
    assert " collectives as on paper, " in line


def test_what_the_rules_refuse_is_told_by_its_rule(lines: list[str]) -> None:
    """The study's own row that cannot be built must not read like a failure of ours."""
    [line] = [line for line in lines if " pp32dp2 " in line]
    assert line.endswith("refused  pp: 80 layers do not divide by pp32")
    assert lines[-1].startswith("3 stepped, 1 refused, 0 failed in ")
