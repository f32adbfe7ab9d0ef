"""Child processes that cannot outlive or outwait us. Standard library only: children import it before all else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_S = 2.0


class Finished(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


def ours(module: str, *flags: str) -> tuple[str, ...]:
    """The command of a program of ours, which finds its modules by `search_environment` alone."""
    return (sys.executable, *flags, "-P", "-m", module)


def search_environment() -> dict[str, str]:
    """In which a child finds the modules that we do, so that it can do without `site`, whose `.pth` files may import
    anything and cost more than the interpreter itself. The standard library first: pytest puts the folders of tests
    before it, where a module may well be called `queue.py`."""
    standard = os.path.dirname(os.__file__)
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    told = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    known = (os.path.abspath(each) for each in (*told, *sys.path))
    paths = (standard, os.path.join(standard, "lib-dynload"), *known, here)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def run_bounded(command: Sequence[str], timeout_s: float) -> Finished:
    """Run a child of `ours` to its end; raises `TimeoutError` once it is late, having killed it with all it started.

    A child stuck in the kernel cannot be killed: it is left to itself, never waited for.
    """
    child = subprocess.Popen(
        command, env=search_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = child.communicate(timeout=timeout_s)
    except BaseException as error:
        _abandon(child)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"no answer in {timeout_s:g} s") from None
        raise
    return Finished(child.returncode, stdout, stderr)


def _abandon(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_REAP_S)


def die_with_parent(signum: signal.Signals, parent_pid: str | None = None) -> None:
    """Have the kernel send us this signal when the *thread* that started us ends, so that thread has to wait for us.

    `parent_pid` is who started us, as the environment told: we exit at once when it is gone already, since the kernel
    tells only of deaths to come. None: not known, not checked. Elsewhere than on Linux only the check is made.
    """
    if sys.platform == "linux":
        # Through libc, because Python has no prctl. Fails only for an unknown signal number.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if parent_pid is not None and os.getppid() != int(parent_pid):
        sys.stderr.write(f"parent {parent_pid} is gone, nothing left to do\n")
        sys.stderr.flush()
        os._exit(1)


def descends(pid: int, ancestor: int) -> bool | None:
    """Whether a process is this one or a child of it, at any depth. None where it is gone, or never was of this PID
    namespace."""
    while pid != ancestor:  # which is 1 where a container runs nothing but pytest
        if pid <= 1:
            return False
        try:
            with open(f"/proc/{pid}/stat") as file:
                stat = file.read()
        except OSError:
            return None
        pid = int(stat.rpartition(")")[2].split()[1])
    return True


def claim_stdout() -> int:
    """A private descriptor of our stdout; from here on, what libraries print there goes to stderr instead."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def last_line(stderr: bytes) -> str:
    """The last line that says something: of a traceback, its exception."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "no message"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none leaves our tree, whatever session it is
    in. Elsewhere than on Linux this does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
