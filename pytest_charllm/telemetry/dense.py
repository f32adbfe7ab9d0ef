"""Spans of time in which slow counters are read at every pass: what is measured begins or ends there.

Whoever knows about windows announces such spans to the sampler, a line each on its stdin. The sampler knows nothing of
launches and ranks, and a span ends by itself, whatever becomes of its announcer.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

_WORDS = {b"dense": False, b"last": True}
"""What a line begins with -> whether its span is the last one."""


class Span(NamedTuple):
    """CLOCK_MONOTONIC nanoseconds. `last`: it takes the place of all that were announced before."""

    begin_ns: int
    end_ns: int
    last: bool = False


def announcement(span: Span) -> bytes:
    """The line that tells the sampler."""
    return b"%s %d %d\n" % (b"last" if span.last else b"dense", span.begin_ns, span.end_ns)


def parse(line: bytes) -> Span | None:
    """The span a line announces; None for anything else."""
    words = line.split()
    if len(words) != 3 or words[0] not in _WORDS or not all(word.isdigit() for word in words[1:]):
        return None
    begin_ns, end_ns = int(words[1]), int(words[2])
    return Span(begin_ns, end_ns, _WORDS[words[0]]) if begin_ns < end_ns else None


class Spans:
    """Those announced so far. Any thread may add and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def add(self, span: Span, now_ns: int) -> None:
        with self._lock:
            self._spans = [each for each in self._spans if each.end_ns > now_ns and not span.last]
            self._spans.append(span)

    def covers(self, now_ns: int) -> bool:
        with self._lock:
            return any(each.begin_ns <= now_ns < each.end_ns for each in self._spans)
