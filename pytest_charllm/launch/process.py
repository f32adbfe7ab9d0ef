"""Process trees: who belongs to a launch, and how to end all of it in bounded time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from pytest_charllm.launch.names import STACKS_SIGNAL, STACKS_SIGNAL_NAME

TERM_WAIT_S = 5.0
KILL_WAIT_S = 5.0


def is_alive(pid: int) -> bool:
    """False for a zombie too: it only waits for its parent to notice."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def members(agent_pid: int, rank_pids: Iterable[int]) -> list[psutil.Process]:
    """Every living process of a launch.

    Descendants of the agent, and all of the sessions that the agent and the ranks lead: ranks are in sessions of
    their own, and what a dead rank left behind (compile workers) has no parent to be found by.
    """
    leaders = {agent_pid, *rank_pids}
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.NoSuchProcess):
        agent = psutil.Process(agent_pid)
        found = {process.pid: process for process in (agent, *agent.children(recursive=True))}
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if pid not in found and os.getsid(pid) in leaders:
                found[pid] = psutil.Process(pid)
    return [process for process in found.values() if is_alive(process.pid)]


def end_tree(agent: subprocess.Popen[bytes], rank_pids: Iterable[int], term_wait_s: float = TERM_WAIT_S) -> list[str]:
    """End a launch: SIGTERM to the agent, which ends its ranks; SIGKILL to all that is left after `term_wait_s`.

    Returns a line for every process that outlived even that (stuck in the kernel, usually on a wedged device).
    """
    # Before anything is signalled: once the agent is gone, nobody is its descendant any more.
    tree = members(agent.pid, rank_pids)
    if agent.poll() is None and term_wait_s > 0:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(term_wait_s)
    known = {process.pid for process in tree}
    tree += [process for process in members(agent.pid, rank_pids) if process.pid not in known]
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        agent.wait(KILL_WAIT_S)
    _, alive = psutil.wait_procs([process for process in tree if process.pid != agent.pid], timeout=KILL_WAIT_S)
    if agent.returncode is None:
        alive.append(psutil.Process(agent.pid))
    return [f"process {process.pid} survived SIGKILL, state {_state(process)}" for process in alive]


def ask_for_stacks(pids: Iterable[int]) -> None:
    """Send the signal that every rank answers with the stacks of all its threads on stderr."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)


def why_silent(pid: int) -> str:
    """What the kernel says of a process that did not answer that signal: ``sleeping; SIGRTMIN+8 blocked``."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "gone"
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    def has(mask: str) -> bool:
        return bool(int(fields.get(mask, "0"), 16) >> (STACKS_SIGNAL - 1) & 1)

    words = [word for mask, word in (("SigBlk", "blocked"), ("SigIgn", "ignored"), ("ShdPnd", "pending")) if has(mask)]
    words += [] if has("SigCgt") else ["without a handler"]
    state = fields.get("State", "").partition("(")[2].rstrip(")\n") or "state not known"
    return f"{state}; {STACKS_SIGNAL_NAME} {', '.join(words) or 'was taken'}"


def _state(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return "gone"
