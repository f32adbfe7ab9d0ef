"""One torchrun job while it lives: start it, watch it, end it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pytest_charllm.launch.environment import child_environment, launch_command
from pytest_charllm.launch.exchange import RankProgress
from pytest_charllm.launch.facts import Hang, log_files, read_progress
from pytest_charllm.launch.hang import hang_reason
from pytest_charllm.launch.liveness import Liveness
from pytest_charllm.launch.names import AGENT_LOG, LAUNCHER_PID, error_file, report_file
from pytest_charllm.launch.process import ask_for_stacks, end_tree, is_alive, why_silent
from pytest_charllm.launch.request import LaunchRequest, Progress

_POLL_S = 0.05
_STACKS_WAIT_S = 2.0


class Job:
    """`start`, `watch`, and, whatever happened, `end`: then no process of it is left.

    Start it from the thread that then watches it: the agent dies with that thread.
    """

    def __init__(self, request: LaunchRequest) -> None:
        self.left: tuple[int, ...] = ()
        """Ranks whose process was gone without any answer while the agent still ran, in the order seen."""
        self.hang: Hang | None = None
        self.progress: dict[int, RankProgress] = {}
        """What each rank told, or was seen to do, last."""
        self.notes: list[str] = []
        self.agent_exit: int | None = None
        """None as long as the agent lives, and for good when it had to be killed."""
        self._request = request
        self._directory = request.directory
        self._world = request.scenario.layout.world
        self._began_s = time.monotonic()
        self._liveness = Liveness(request.directory)
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = child_environment(self._request, os.environ)
        environment[LAUNCHER_PID] = str(os.getpid())
        with open(self._directory / AGENT_LOG, "wb") as log:
            # Files, never pipes: whoever survives would hold a pipe open. A session of its own, so that Ctrl-C in a
            # terminal reaches only the launcher, which ends the job in order.
            self._agent = subprocess.Popen(
                launch_command(self._request),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def watch(self, on_progress: Callable[[Progress], None]) -> None:
        """Return when the job has ended, or must be ended; the reason is then in `hang` or `notes`."""
        limits = self._request.limits
        shown: tuple[str, int | None, float | None] = ("start", None, None)
        on_progress(Progress(*shown, elapsed_s=0.0))
        complete_s: float | None = None
        trouble_s: float | None = None
        while self._agent is not None and self._agent.poll() is None:
            now = time.monotonic()
            self.progress = self._liveness.refresh(read_progress(self._directory, range(self._world)))
            first = self.progress.get(min(self.progress, default=0))
            if first is not None and (first.phase, first.step, first.tokens_per_s) != shown:
                shown = (first.phase, first.step, first.tokens_per_s)
                on_progress(Progress(*shown, elapsed_s=now - self._began_s, expected_s=first.expected_s))

            unfinished = self._unfinished()
            if not unfinished:
                complete_s = complete_s or now
                if now - complete_s > limits.exit_s:
                    self._note_hung_at_exit()
                    return
            elif self._in_trouble(unfinished):
                # The agent ends the others as soon as it sees a failure, but not for a rank that exited with 0.
                trouble_s = trouble_s or now
                if now - trouble_s > limits.settle_s:
                    return
            elif (reason := hang_reason(self.progress, unfinished, self._began_s, now, limits)) is not None:
                stacks = self._stacks()
                silent = {rank: why_silent(self.progress[rank].pid) for rank, stack in stacks.items() if not stack}
                self.hang = Hang(reason=reason, at_s=now, stacks=stacks, silent=silent)
                return
            time.sleep(_POLL_S)

    def end(self) -> None:
        """End every process of the job. What survives even SIGKILL is in `notes`."""
        if self._agent is None:
            return
        self.agent_exit = self._agent.poll()
        if self.hang is None:  # the stacks that a hung rank was asked for are no sign of life
            self.progress = self._liveness.refresh(read_progress(self._directory, range(self._world)))
        self.notes += end_tree(self._agent, [told.pid for told in self.progress.values()])

    def _unfinished(self) -> list[int]:
        return [rank for rank in range(self._world) if not report_file(self._directory, rank).exists()]

    def _in_trouble(self, unfinished: list[int]) -> bool:
        """Whether a rank failed, or left without an answer. Once one has failed, the agent ends the others."""
        if any(error_file(self._directory, rank).exists() for rank in unfinished):
            return True
        for rank in unfinished:
            told = self.progress.get(rank)
            if told is None or rank in self.left or is_alive(told.pid):
                continue
            # Looked for only now, since a rank answers before it goes.
            if not report_file(self._directory, rank).exists() and not error_file(self._directory, rank).exists():
                self.left += (rank,)
        return bool(self.left)

    def _note_hung_at_exit(self) -> None:
        alive = [f"rank {rank}" for rank, told in sorted(self.progress.items()) if is_alive(told.pid)]
        who = ", ".join(alive) or "torchrun's agent"
        self.notes.append(
            f"hung at exit: {who} still alive {self._request.limits.exit_s:g} s after the last report; ended"
        )

    def _stacks(self) -> dict[int, str]:
        """Ask every rank for the stacks of its threads; what a rank answers ends up in its stderr log."""
        logs = log_files(self._directory)
        before = {rank: _size(path) for rank, path in logs.items()}
        # Only ranks that have told something listen to the signal: it would end the others.
        asked = {rank: told.pid for rank, told in self.progress.items() if rank in logs and is_alive(told.pid)}
        ask_for_stacks(asked.values())
        sizes: dict[int, int] = {}
        deadline = time.monotonic() + _STACKS_WAIT_S
        while time.monotonic() < deadline:
            time.sleep(_STACKS_WAIT_S / 4)
            now = {rank: _size(logs[rank]) for rank in asked}
            if now == sizes and all(now[rank] > before[rank] for rank in asked):
                break
            sizes = now
        return {rank: _read_from(logs[rank], before[rank]) for rank in asked}


def _size(path: Path) -> int:
    return path.stat().st_size


def _read_from(path: Path, offset: int) -> str:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace").strip()
