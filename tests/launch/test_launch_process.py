"""What the kernel says of a process that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from pytest_charllm.launch.process import ask_for_stacks, is_alive, why_silent

SAYS = {
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})",
    "ignored": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "taken": "signal.signal(signal.SIGUSR1, lambda *_: None)",
    "stopped": "signal.signal(signal.SIGUSR1, lambda *_: None)",
}


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Prepared as the parameter says, then asleep."""
    code = f"import signal, time; {SAYS[request.param]}; print('ready', flush=True)\nwhile True: time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        if request.param == "stopped":
            running.send_signal(signal.SIGSTOP)
            until_s = time.monotonic() + 10
            while psutil.Process(running.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < until_s:
                time.sleep(0.01)  # of two signals that wait, the kernel hands out SIGUSR1 first
        yield running
        running.kill()


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ("blocked", "sleeping; SIGUSR1 blocked, pending, without a handler"),
        ("ignored", "sleeping; SIGUSR1 ignored, without a handler"),
        ("taken", "sleeping; SIGUSR1 was taken"),
        ("stopped", "stopped; SIGUSR1 pending"),
    ],
    indirect=["process"],
)
def test_why_a_process_is_silent(process: subprocess.Popen[str], said: str) -> None:
    """Two H200s: "the process did not answer", and nothing by which to find out why."""
    until_s = time.monotonic() + 10
    ask_for_stacks([process.pid])
    while (found := why_silent(process.pid)) != said and time.monotonic() < until_s:
        time.sleep(0.02)
    assert found == said
    assert is_alive(process.pid)


def test_one_that_is_gone_says_so() -> None:
    """It ended between the question and this one."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert why_silent(ended.pid) == "gone"
