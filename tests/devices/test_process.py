from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_charllm.devices.process import last_line, run_bounded


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_answers():
    """Exit code and both streams come back as they are."""
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run_bounded((sys.executable, "-c", script), 30) == (3, b"out\n", b"err\n")


def test_a_late_child_is_killed_with_all_it_started(tmp_path):
    """A hung driver call must not hang pytest; and a grandchild that keeps the pipe open must not either."""
    script = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "pathlib.Path(sys.argv[1], 'c' if pid == 0 else 'p').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(TimeoutError, match="no answer in 2 s"):
        run_bounded((sys.executable, "-c", script, str(tmp_path)), 2)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, pids))


def test_noise_on_stdout_stays_out_of_the_answer():
    """Vendor libraries print on stdout while loading, which would break the one line of JSON."""
    script = (
        "import os; from pytest_charllm.devices.process import claim_stdout\n"
        "out = claim_stdout(); os.write(1, b'noise from C'); print('noise', flush=True); os.write(out, b'answer')\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, timeout=30, check=True)
    assert done.stdout == b"answer"
    assert done.stderr == b"noise from Cnoise\n"


def test_last_line_is_the_exception_of_a_traceback():
    """The one line shown to a user must be the cause, not 'Traceback (most recent call last)'."""
    assert last_line(b"Traceback (most recent call last):\n  File x\nValueError: why\n") == "ValueError: why"
    assert last_line(b"") == "no message"
