"""What a rank does where it cannot write. Without torchrun: it ends before it would need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_charllm
from pytest_charllm.errors import HarnessError
from pytest_charllm.launch.names import NO_ANSWER, REQUEST_PATH
from pytest_charllm.launch.rank import ProgressFile


def test_progress_that_cannot_be_written_is_our_own_trouble(tmp_path: Path) -> None:
    """A full disk raised OSError inside the engine's loop, which was filed as a crash of the training."""
    with pytest.raises(HarnessError, match=r"rank0.progress.json not writable: No such file or directory"):
        ProgressFile(tmp_path / "gone", 0)("window")


def test_a_rank_without_a_place_to_answer_says_so_by_its_exit_code(tmp_path: Path) -> None:
    """Exit code 1 and no file would be taken for a crash before the first line of ours."""
    (tmp_path / "file").write_text("in the way of the launch's folder")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(pytest_charllm.__file__).parents[1]),
        "RANK": "0",
        REQUEST_PATH: str(tmp_path / "file" / "request.json"),
    }
    command = [sys.executable, "-m", "pytest_charllm.launch.rank"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == NO_ANSWER
    assert "rank0.progress.json not writable: Not a directory" in done.stderr
