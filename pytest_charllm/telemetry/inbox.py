"""What reaches the sampler's main thread: lines for the file, which can wait for its next round, and orders, which end
the wait. A thread that wakes for every line costs as much as the reads that the lines come from."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import NamedTuple

from pytest_charllm.records.telemetry import EventLine, RingLine, SampleLine, SnapshotLine
from pytest_charllm.telemetry.dense import Span

ReaderLine = SampleLine | SnapshotLine | RingLine | EventLine


class Stop(NamedTuple):
    """Why sampling ends. `ok`: someone asked for it. `stays`: only this recording ends, another may follow."""

    reason: str
    ok: bool = True
    stays: bool = False


class NextTrace(NamedTuple):
    """Record another trace, as the configuration at this path says."""

    config: str


Order = Stop | NextTrace | Span


class Inbox:
    """Any thread and any signal handler may put something in; one thread takes it out."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[ReaderLine] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()

    def put(self, line: ReaderLine) -> None:
        self._lines.put(line)

    def order(self, order: Order) -> None:
        self._orders.put(order)

    def hurry(self) -> None:
        """The lines so far are waited for."""
        self._orders.put(None)

    def wait(self, timeout_s: float) -> Order | None:
        """The next order. None after so long without one, or where the lines are in a hurry."""
        try:
            return self._orders.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def lines(self) -> Iterator[ReaderLine]:
        """Those that came in since they were last taken, oldest first."""
        while True:
            try:
                yield self._lines.get_nowait()
            except queue.Empty:
                return
