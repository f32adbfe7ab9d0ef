"""Spans of time that are looked at more closely, or less: what is measured begins or ends there, or nothing is.

Whoever knows about windows announces such spans to the sampler, a line each on its stdin. The sampler knows nothing of
launches and ranks, and a span ends by itself, whatever becomes of its announcer. Without any it keeps its full pace.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """dense: counters of energy and of bytes sent at every pass. last: dense, in the place of all that was announced
    before. rest: fewer passes, since nothing of them will be judged. near: nothing yet, but it may begin at any moment,
    so that all is read just often enough to lie on both sides of an edge. Each ends those before it, but dense spans
    may be several."""

    DENSE = "dense"
    LAST = "last"
    REST = "rest"
    NEAR = "near"


_CLOSE = (Kind.DENSE, Kind.LAST)


class Span(NamedTuple):
    """CLOCK_MONOTONIC nanoseconds."""

    begin_ns: int
    end_ns: int
    kind: Kind = Kind.DENSE


def announcement(span: Span) -> bytes:
    """The line that tells the sampler."""
    return b"%s %d %d\n" % (span.kind.encode(), span.begin_ns, span.end_ns)


def parse(line: bytes) -> Span | None:
    """The span a line announces; None for anything else."""
    words = line.decode(errors="replace").split()
    if len(words) != 3 or words[0] not in set(Kind) or not all(word.isascii() and word.isdigit() for word in words[1:]):
        return None
    begin_ns, end_ns = int(words[1]), int(words[2])
    return Span(begin_ns, end_ns, Kind(words[0])) if begin_ns < end_ns else None


class Spans:
    """Those announced so far. One thread adds, any thread asks, ten times a second: so without a lock."""

    def __init__(self) -> None:
        self._spans: tuple[Span, ...] = ()

    def add(self, span: Span, now_ns: int) -> bool:
        """Whether the next pass is due sooner: it ended a rest, or took one back, or a close look begins with it."""
        was_close = self.at(now_ns) is Kind.DENSE
        stay = () if span.kind is Kind.LAST else _CLOSE
        still = [each for each in self._spans if each.end_ns > now_ns]
        self._spans = (*(each for each in still if each.kind in stay), span)
        ended_rest = span.kind is not Kind.REST and Kind.REST in {each.kind for each in still}
        return ended_rest or (not was_close and self.at(now_ns) is Kind.DENSE)

    def at(self, now_ns: int) -> Kind | None:
        """What holds now: DENSE wherever a close look is due, else REST or NEAR, else None."""
        found = None
        for begin_ns, end_ns, kind in self._spans:
            if begin_ns <= now_ns < end_ns:
                if kind in _CLOSE:
                    return Kind.DENSE
                found = kind
        return found
