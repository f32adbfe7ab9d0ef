"""What the kernel says of a process that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_charllm.launch.names import STACKS_SIGNAL
from pytest_charllm.launch.process import ask_for_stacks, is_alive, why_silent

SAYS = {
    "blocked": f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{STACKS_SIGNAL}}})",
    "ignored": f"signal.signal({STACKS_SIGNAL}, signal.SIG_IGN)",
    "taken": f"signal.signal({STACKS_SIGNAL}, lambda *_: None)",
    "stopped": f"signal.signal({STACKS_SIGNAL}, lambda *_: None)",
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
                time.sleep(0.01)
        yield running
        running.kill()


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ("blocked", "sleeping; SIGRTMIN+8 blocked, pending, without a handler"),
        ("ignored", "sleeping; SIGRTMIN+8 ignored, without a handler"),
        ("taken", "sleeping; SIGRTMIN+8 was taken"),
        ("stopped", "stopped; SIGRTMIN+8 pending"),
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


COMPILES = """
import faulthandler, sys, time, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def twice(x):
    triton.language.store(x, triton.language.load(x) * 2)

faulthandler.register(int(sys.argv[1]))
triton.compile(ASTSource(fn=twice, signature={"x": "*fp32"}, constexprs={}), target=GPUTarget("cuda", 90, 32))
print("ready", flush=True)
time.sleep(10)
"""


def test_a_rank_that_compiled_answers(tmp_path: Path) -> None:
    """Two H200s: the LLVM within Triton took SIGUSR1, the signal before this one, and no hang had stacks."""
    pytest.importorskip("triton")
    program = tmp_path / "compiles.py"  # Triton reads a kernel's source
    program.write_text(COMPILES)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(program), str(int(STACKS_SIGNAL))]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "ready\n"
        ask_for_stacks([running.pid])
        said = running.stderr.readline() + running.stderr.readline()
        running.kill()
    assert "compiles.py" in said


def test_the_signal_is_nobody_elses() -> None:
    """What LLVM takes when it first compiles are standard signals, SIGUSR1 and SIGUSR2 among them."""
    assert STACKS_SIGNAL not in set(signal.Signals) - {signal.SIGRTMIN, signal.SIGRTMAX}
    assert signal.SIGRTMIN < STACKS_SIGNAL < signal.SIGRTMAX
