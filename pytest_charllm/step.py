"""For training scripts of one's own: call `mark_step` once a step, and its launch knows how long each one took.

    from pytest_charllm.step import mark_step

    for batch in loader:
        train(batch)
        mark_step()

Outside of a launch it does nothing. In one, the environment variable CHARLLM_STEPS names a file for this rank, to which
each call appends a line, so that whatever ends the process leaves what it had done until then:

    {"line":"mark","mono_ns":...,"cpu_ns":...,"tokens":...,"pid":...,"thread":...,"event":true}
    {"line":"span","s":0.125}                   the device's time from one event to the next, in their order
    {"line":"end","mono_ns":...,"s":0.5,"peak_memory_bytes":...}      at exit, where there were events

`mono_ns` is CLOCK_MONOTONIC, `cpu_ns` this process's CPU time. Where torch has a CUDA context by then, a call also
records an event in the current stream of the current device (`torch.cuda.set_device`), and the device's own time
counts: the host may be many steps ahead. Nothing waits for the device, except once at exit, to tie its clock to the
host's.

Standard library only, and nothing of torch is imported here: a script pays for what it uses.
"""

from __future__ import annotations

import atexit
import functools
import json
import operator
import os
import sys
import threading
import time
from collections import deque
from typing import Any

STEPS_PATH = "CHARLLM_STEPS"


def mark_step(*, tokens: int | None = None) -> None:
    """Say that an optimizer step has just ended (or, with the first call, that the first one begins).

    `tokens`: how many tokens this step trained on, over all ranks. What lies between two calls is a step, so leave out
    no call and call from one thread. Every rank has to call it. A file that cannot be written is told on stderr, once;
    training goes on. Raises, in a launch alone, `TypeError` or `ValueError` for tokens that are no number from 0 on.
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.mark(None if tokens is None else _whole(tokens))


@functools.cache
def _recorder() -> _Recorder | None:
    path = os.environ.get(STEPS_PATH)
    return _Recorder(path) if path else None


class _Recorder:
    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._broken = False
        self._pending: deque[Any] = deque()
        """The last event that the device had passed when it was asked, and those after it."""

    def mark(self, tokens: int | None) -> None:
        mono_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        event = _event()
        self._write(
            line="mark", mono_ns=mono_ns, cpu_ns=cpu_ns, tokens=tokens, pid=os.getpid(),
            thread=threading.current_thread().name, event=event is not None,
        )  # fmt: skip
        if event is not None:
            if not self._pending:
                atexit.register(self._end, os.getpid())
            self._pending.append(event)
            self._pop_passed()

    def _pop_passed(self) -> None:
        """Write the time between each two events that the device has passed by now."""
        while len(self._pending) > 1 and self._pending[1].query():
            before = self._pending.popleft()
            self._write(line="span", s=before.elapsed_time(self._pending[0]) / 1e3)

    def _end(self, pid: int) -> None:
        if os.getpid() != pid:  # a fork that goes through Python's exit: the device is not its own
            return
        cuda = sys.modules["torch"].cuda
        end = cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()
        mono_ns = time.monotonic_ns()
        self._pop_passed()
        self._write(
            line="end", mono_ns=mono_ns, s=self._pending[-1].elapsed_time(end) / 1e3,
            peak_memory_bytes=cuda.max_memory_allocated(),
        )  # fmt: skip

    def _write(self, **line: Any) -> None:
        if self._broken:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            # One write a line, unbuffered: lines of two processes never mix, and none is lost with the process.
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self._broken = True
            sys.stderr.write(f"mark_step: {self._path} not writable, steps are no longer recorded: {error.strerror}\n")


def _whole(tokens: Any) -> int:
    """Also numpy's and torch's whole numbers, which JSON does not know."""
    try:
        number = operator.index(tokens)
    except TypeError:
        raise TypeError(f"mark_step: tokens is {tokens!r}, not a whole number") from None
    if number < 0:
        raise ValueError(f"mark_step: tokens is {number}, it must be at least 0")
    return number


def _event() -> Any:
    """An event in the current stream, recorded; None where this process has no CUDA context (HIP's counts as one)."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
