"""Starting and stopping the recording of a trace by the sampler process of this node. Every wait is bounded."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from pytest_charllm.errors import HarnessError
from pytest_charllm.records.base import to_pretty_json
from pytest_charllm.telemetry.child import Child
from pytest_charllm.telemetry.config import CLOSE, CLOSED, READY, SamplerConfig, recording
from pytest_charllm.telemetry.dense import Span, announcement
from pytest_charllm.telemetry.keeper import Keeper


class Sampler:
    """One recording, of these devices of `source`, into `path`; no uuid means every device it has. Quantities
    `without` are not read.

    By a process of its own, or by the one that `keeper` has; what recorded well is left to it. Its configuration is
    left beside the trace, as ``<path>.config.json``.
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
        keeper: Keeper | None = None,
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
        self._keeper = keeper
        self._child: Child | None = None
        self._told_to_close = False
        self._notes: tuple[str, ...] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Returns once the first sample of each device is in the file; raises `HarnessError` when that fails."""
        config = self.path.with_name(self.path.name + ".config.json")
        try:
            config.write_bytes(to_pretty_json(self._config))
        except OSError as error:
            raise HarnessError(f"telemetry sampler cannot be started: {error}") from None
        if not self._goes_on(config):
            self._child = Child(config)
            self._await_ready(self._child)

    def _goes_on(self, config: Path) -> bool:
        """With the process that was kept. One that has died while it waited is no fault of this recording."""
        self._child = self._keeper.take(self._devices) if self._keeper is not None else None
        if self._child is None:
            return False
        self._child.say(recording(str(config)))
        try:
            self._await_ready(self._child)
        except HarnessError:
            if not self._child.hung_up or self.path.exists():
                raise
            self._notes = None
            return False
        return True

    def _await_ready(self, child: Child) -> None:
        try:
            if not child.hears(READY, self._start_timeout_s):
                failed = "ended before the first sample of each device"
                if not child.hung_up:
                    failed = f"gave no first sample of each device in {self._start_timeout_s:g} s"
                raise HarnessError(f"telemetry sampler ({self._config.source}) {failed}: {child.tail()}")
        except BaseException:
            child.end(politely=False)
            self._close(())
            raise

    def announce(self, span: Span) -> None:
        """Announce a span: by its kind there is an edge of what is measured in it, or nothing to be judged.

        A sampler that has ended or does not listen is told of by `stop`, not here.
        """
        if self._child is not None and self._notes is None:
            self._child.say(announcement(span))

    def stop(self) -> tuple[str, ...]:
        """End the recording; what is worth knowing about how it ended, nothing if all went well. Repeatable."""
        if self._notes is None:
            if self._child is None:
                self._notes = ()
            elif self._keeper is not None and self._child.exit_code is None and self._closes(self._child):
                self._keeper.keep(self._devices, self._child)
                self._notes = ()
            else:
                self._close(tuple(self._stop(self._child)))
        return self._notes or ()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _devices(self) -> tuple[str, tuple[str, ...]]:
        return self._config.source, self._config.uuids

    def _closes(self, child: Child) -> bool:
        """Whether it may be used again. One that may not ends by itself."""
        self._told_to_close = True
        child.say(CLOSE)
        return child.hears(CLOSED)

    def _stop(self, child: Child) -> list[str]:
        code = None if self._told_to_close else child.exit_code
        how = child.end(politely=True)
        if code is not None:
            return [f"telemetry sampler ended early ({_exit(code)}): {child.tail()}"]
        if how is not None:
            return [f"telemetry sampler {how}: {child.tail()}"]
        if child.exit_code != 0:
            return [f"telemetry sampler failed at its end ({_exit(child.exit_code)}): {child.tail()}"]
        return []

    def _close(self, notes: tuple[str, ...]) -> None:
        assert self._child is not None
        self._notes = notes
        self._child.forget()


def _exit(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
