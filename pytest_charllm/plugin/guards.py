"""What suites refuse to run under, and how a cancelled job still cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import pytest

SIGTERM_EXIT = 128 + signal.SIGTERM

REFUSED = "charllm_refused"
XDIST = "charllm suites own the GPUs or cores of this machine and run one launch at a time: run them without -n"
RERUNS = "charllm suites confirm a breach with fresh launches and never retry until green: run them without --reruns"


def refusal(config: pytest.Config) -> str | None:
    """Why items of ours cannot run in this session, in one sentence."""
    if hasattr(config, "workerinput"):
        return XDIST
    return RERUNS if _reruns(config) else None


def refuse(config: pytest.Config, why: str) -> NoReturn:
    """Raises `pytest.UsageError`; an xdist worker also hands the sentence to its controller."""
    if hasattr(config, "workerinput"):
        config.workeroutput[REFUSED] = why  # type: ignore[attr-defined]
    raise pytest.UsageError(why)


def raise_refusal_of(node: Any) -> None:
    """In the controller: raise what a worker refused."""
    why = getattr(node, "workeroutput", {}).get(REFUSED)
    if why is not None:
        raise pytest.UsageError(why)


def _reruns(config: pytest.Config) -> bool:
    if config.getoption("force_reruns", None) or config.getoption("reruns", None):
        return True
    try:
        return bool(config.getini("reruns"))
    except ValueError:  # no plugin that knows this setting
        return False


class SigtermGuard:
    """Turns SIGTERM (a cancelled CI job, scancel) into an orderly end of the session.

    The default action ends Python without running any `finally`, which would leave the agent, its ranks and the
    sampler behind.
    """

    def __init__(self) -> None:
        self.arrived = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Only the main thread may set handlers; anywhere else this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def raise_if_arrived(self) -> None:
        """For the case that somebody's ``except Exception`` swallowed the first one."""
        if self.arrived:
            pytest.exit("SIGTERM", returncode=SIGTERM_EXIT)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        first, self.arrived = not self.arrived, True
        if first:  # a second one must not cut the clean-up short
            pytest.exit("SIGTERM", returncode=SIGTERM_EXIT)
