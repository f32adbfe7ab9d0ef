"""The sampler process as its parent has it: started, spoken to, listened to, ended. Every wait is bounded."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

from pytest_charllm.devices.process import ours, search_environment
from pytest_charllm.errors import HarnessError

_STEP_S = 3.0
"""How long each way of ending the sampler may take before the next, harder one."""
_TAIL_BYTES = 2000


class Child:
    """One sampler process, started with the configuration of its first recording.

    Start it from a thread that outlives it, best the main one: the kernel ends the sampler with that thread.
    """

    def __init__(self, config: Path) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the sampler has ended
        self._heard = b""
        self.hung_up = False
        """Whether it closed its side: it has ended, or is about to."""
        try:
            self._process = subprocess.Popen(
                (*ours("pytest_charllm.telemetry", "-S"), str(config)),
                env=search_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is for the training; the sampler outlives it, to bracket the window
            )
        except OSError as error:
            self._stderr.close()
            raise HarnessError(f"telemetry sampler cannot be started: {error}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def say(self, line: bytes) -> None:
        """One that has ended or does not listen is noticed by who waits for its answer, not here."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # a full pipe as well: it must never hold its caller up
            os.write(self._process.stdin.fileno(), line)

    def hears(self, word: bytes, timeout_s: float = _STEP_S) -> bool:
        """Whether that is what it says next, within this time. False at once when it ends before."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while not self._heard.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], left)[0]:
                chunk = os.read(self._process.stdout.fileno(), 1)
                if not chunk:
                    self.hung_up = True
                    return False
                self._heard += chunk
        said, self._heard = self._heard, b""
        return said == word

    def end(self, *, politely: bool) -> str | None:
        """Close its stdin and wait, then TERM, then KILL, as far as needed. None: it ended as it should."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        if politely:
            if self._ended():
                return None
            self._process.terminate()
            if self._ended():
                return "had to be terminated"
        self._process.kill()
        if self._ended():
            return "had to be killed"
        return "cannot be killed (it hangs in the driver) and was left behind"

    def tail(self) -> str:
        """The end of what it said on stderr, in one line."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _TAIL_BYTES))
        said = " | ".join(line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line)
        return said or "it said nothing"

    def forget(self) -> None:
        """Once it has ended, and nothing more is asked of it."""
        self._stderr.close()

    def _ended(self) -> bool:
        try:
            self._process.wait(timeout=_STEP_S)
        except subprocess.TimeoutExpired:
            return False
        return True
