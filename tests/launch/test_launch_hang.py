"""When silence is a hang."""

from __future__ import annotations

import pytest

from pytest_charllm.launch.exchange import RankProgress
from pytest_charllm.launch.hang import hang_reason, main_thread_frame, suspect
from pytest_charllm.launch.request import Limits

LIMITS = Limits(start_s=100, compile_s=500, silence_s=30, silence_factor=5, total_s=2000)


def told(phase: str, at_s: float, expected_s: float | None = None, rank: int = 0) -> RankProgress:
    return RankProgress(rank=rank, pid=1, phase=phase, mono_s=at_s, expected_s=expected_s)


@pytest.mark.parametrize(
    ("progress", "patience_s"),
    [
        (None, 100),
        (told("start", 0), 100),
        (told("build", 0), 500),
        (told("compile", 0), 500),
        (told("window", 0, expected_s=0.1), 30),
        (told("window", 0, expected_s=20), 100),
        (told("report", 0), 100),
    ],
)
def test_patience_follows_what_the_rank_expects(progress: RankProgress | None, patience_s: float) -> None:
    """A compile of ten minutes is no hang, a window that is ten minutes late is."""
    known = {} if progress is None else {0: progress}

    assert hang_reason(known, [0], 0.0, patience_s - 1, LIMITS) is None
    assert hang_reason(known, [0], 0.0, patience_s + 1, LIMITS) == f"no progress for {patience_s + 1} s"


def test_one_rank_that_still_tells_is_no_hang() -> None:
    """A rank that waits for a slow one says nothing for long."""
    progress = {0: told("window", 0, expected_s=0.1), 1: told("compile", 35)}

    assert hang_reason(progress, [0, 1], 0.0, 60, LIMITS) is None
    assert hang_reason(progress, [0], 0.0, 60, LIMITS) == "no progress for 60 s"


def test_total_time_is_bounded_even_with_progress() -> None:
    """A job that crawls must not hold the machine all night."""
    assert hang_reason({0: told("window", 2000.5, 1.0)}, [0], 0.0, 2001, LIMITS) == "not finished after 2000 s"


DUMP = """\
Thread 0x00007f01 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait
  File "/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "/project/engine.py", line 41 in step
  File "/project/engine.py", line 12 in <module>
"""


def test_main_thread_is_the_last_one_dumped() -> None:
    """Helper threads wait all the time; taking one of them for the rank's place would accuse the wrong code."""
    assert main_thread_frame(DUMP) == ("/project/engine.py:41", "step")
    assert main_thread_frame("Segmentation fault") is None


def test_suspect_needs_one_answer() -> None:
    """With two ranks outside torch nobody knows who waits for whom: better no name than a wrong one."""
    progress = {0: told("window", 0), 1: told("window", 0, rank=1)}

    assert suspect({0: DUMP, 1: DUMP}, progress, [0, 1]) is None
    assert suspect({0: DUMP, 1: DUMP.replace("/project/", "/torch/")}, progress, [0, 1]) == 0
    assert suspect({}, {0: told("start", 0)}, [0, 1]) == 1
    assert suspect({}, progress, [0, 1]) is None
