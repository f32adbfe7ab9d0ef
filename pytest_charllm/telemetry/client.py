"""Starting and stopping the sampler process of this node. Every wait is bounded."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pytest_charllm
from pytest_charllm.errors import HarnessError
from pytest_charllm.records.base import to_pretty_json
from pytest_charllm.telemetry.config import READY, SamplerConfig
from pytest_charllm.telemetry.dense import Span, announcement

_STEP_S = 3.0
"""How long each way of ending the sampler may take before the next, harder one."""
_TAIL_BYTES = 2000


class Sampler:
    """One sampler process writing `path`, for these devices of `source`; no uuid means every device it has. Quantities
    `without` are not read.

    Start it from a thread that outlives it, best the main one: the kernel ends the sampler with that thread. Its
    configuration is left beside the trace, as ``<path>.config.json``.
    """

    def __init__(
        self,
        path: Path,
        source: str,
        uuids: tuple[str, ...] = (),
        period_s: float = 0.1,
        *,
        without: tuple[str, ...] = (),
        start_timeout_s: float = 15.0,
    ) -> None:
        self.path = path
        self._config = SamplerConfig(
            path=str(path),
            source=source,
            uuids=uuids,
            period_s=period_s,
            without=without,
            parent_pid=os.getpid(),
            ours_pid=os.getpid(),
        )
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the sampler has ended
        self._notes: tuple[str, ...] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns once the first sample of each device is in the file; raises `HarnessError` when that fails."""
        config = self.path.with_name(self.path.name + ".config.json")
        try:
            config.write_bytes(to_pretty_json(self._config))
            self._process = subprocess.Popen(
                (sys.executable, "-S", "-P", "-m", "pytest_charllm.telemetry.sampler", str(config)),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path())},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is for the training; the sampler outlives it, to bracket the window
            )
        except OSError as error:
            raise HarnessError(f"telemetry sampler cannot be started: {error}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        try:
            failure = self._await_ready(self._process)
            if failure:
                raise HarnessError(f"telemetry sampler ({self._config.source}) {failure}: {self._tail()}")
        except BaseException:
            _end(self._process, politely=False)
            self._close(())
            raise

    def announce(self, span: Span) -> None:
        """Announce a span: by its kind there is an edge of what is measured in it, or nothing to be judged.

        A sampler that has ended or does not listen is told of by `stop`, not here.
        """
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # a full pipe as well: it must never hold its caller up
                os.write(self._process.stdin.fileno(), announcement(span))

    def stop(self) -> tuple[str, ...]:
        """End the sampler; what is worth knowing about how it ended, nothing if all went well. Repeatable."""
        if self._notes is None:
            self._close(() if self._process is None else tuple(self._stop(self._process)))
        return self._notes or ()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> str | None:
        """None once it says so; else how it failed to, as soon as that is known."""
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout_s
        said = b""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([process.stdout], [], [], left)[0]:
                chunk = os.read(process.stdout.fileno(), len(READY))
                said += chunk
                if said == READY:
                    return None
                if not chunk:
                    return "ended before the first sample of each device"
        return f"gave no first sample of each device in {self._start_timeout_s:g} s"

    def _stop(self, process: subprocess.Popen[bytes]) -> list[str]:
        code = process.poll()
        how = _end(process, politely=True)
        if code is not None:
            return [f"telemetry sampler ended early ({_exit(code)}): {self._tail()}"]
        if how is not None:
            return [f"telemetry sampler {how}: {self._tail()}"]
        if process.returncode != 0:
            return [f"telemetry sampler failed at its end ({_exit(process.returncode)}): {self._tail()}"]
        return []

    def _tail(self) -> str:
        """The end of what it said on stderr, in one line."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _TAIL_BYTES))
        said = " | ".join(line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line)
        return said or "it said nothing"

    def _close(self, notes: tuple[str, ...]) -> None:
        self._notes = notes
        self._stderr.close()


def search_path() -> list[str]:
    """Where the sampler finds its modules: where we do, so that it can do without `site`, whose `.pth` files may import
    anything and cost more than the interpreter itself. The standard library first: pytest puts the folders of tests
    before it, where a helper may well be called `queue.py`."""
    standard = os.path.dirname(os.__file__)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(pytest_charllm.__file__)))
    paths = (standard, os.path.join(standard, "lib-dynload"), *(os.path.abspath(each) for each in sys.path), ours)
    return list(dict.fromkeys(paths))


def _end(process: subprocess.Popen[bytes], *, politely: bool) -> str | None:
    """Close its stdin and wait, then TERM, then KILL, as far as needed. None: it ended as it should."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.stdout.close()
    if politely:
        if _ended(process):
            return None
        process.terminate()
        if _ended(process):
            return "had to be terminated"
    process.kill()
    return "had to be killed" if _ended(process) else "cannot be killed (it hangs in the driver) and was left behind"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=_STEP_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit {code}"
