"""When a device is free for dear reads, learnt from how long they take. Pure.

An H200 does work of its own for 5 ms of every 20 ms, of every fifth time for 15 ms. A read of energy that comes
meanwhile waits in the driver, spinning: a third of what dear reads took was that (`docs/metrics.md`, "CPU of the
sampler").
"""

from __future__ import annotations

from collections import deque

BEAT_NS = 20_000_000
LONG_NS = 100_000_000
_WAITED_NS = 2_000_000
"""A pass that takes so much longer than the shortest of late of its sort had to wait."""
_LONG_WAIT_NS = 6_000_000
"""One that waited longer than the work of every beat lasts met that of every fifth."""
_FREE_NS = 7_000_000
"""So long after the end of that work a pass over all may begin and still be done before the next."""
_CLEAR_NS = 2_000_000
"""What is put off begins so long after that end: what is known of it is some milliseconds old or wrong."""
_AGREE_NS = 3_000_000
_RECENT = 20


class Beat:
    """One device's. Instants in monotonic nanoseconds. A device that has no such habit only has reads put off a little:
    by 35 ms at the most."""

    def __init__(self) -> None:
        self._recent = {over_all: deque[int](maxlen=_RECENT) for over_all in (False, True)}
        self._ends: deque[int] = deque(maxlen=3)
        self._long_ends: deque[int] = deque(maxlen=3)

    def hold_ns(self, now_ns: int) -> int:
        """How long to wait from now for a moment to begin in; 0 where this is one, or none is known."""
        begin_ns = now_ns
        end_ns, long_end_ns = _likeliest(self._ends, BEAT_NS), _likeliest(self._long_ends, LONG_NS)
        if end_ns is not None:
            since_ns = (now_ns - end_ns) % BEAT_NS
            begin_ns += (0 if since_ns <= _FREE_NS else BEAT_NS) - since_ns
        if long_end_ns is not None:
            until_ns = (long_end_ns - begin_ns) % LONG_NS
            if _AGREE_NS < until_ns <= BEAT_NS + _AGREE_NS:
                begin_ns += until_ns if end_ns is None else BEAT_NS
        return begin_ns + _CLEAR_NS - now_ns if begin_ns > now_ns else 0

    def learn(self, over_all: bool, latency_ns: int, end_ns: int) -> None:
        """From a pass, over all or at an edge, that took so long and was done at `end_ns`."""
        recent = self._recent[over_all]
        recent.append(latency_ns)
        usual_ns = min(recent)
        waited_ns, wait_end_ns = latency_ns - usual_ns, end_ns - usual_ns
        if waited_ns <= _WAITED_NS:
            return
        if waited_ns <= _LONG_WAIT_NS and not any(_agree(wait_end_ns, each, LONG_NS) for each in self._long_ends):
            self._ends.append(wait_end_ns)
            return
        self._long_ends.append(wait_end_ns)
        # What agrees with it waited for the last of the same work.
        self._ends = deque((each for each in self._ends if not _agree(wait_end_ns, each, LONG_NS)), self._ends.maxlen)


def _agree(one_ns: int, other_ns: int, every_ns: int) -> bool:
    apart_ns = (one_ns - other_ns) % every_ns
    return min(apart_ns, every_ns - apart_ns) < _AGREE_NS


def _likeliest(ends_ns: deque[int], every_ns: int) -> int | None:
    """The latest end that another one agrees with; a lone one may be of a wait for something else. Without any such the
    latest."""
    for end_ns in reversed(ends_ns):
        if sum(_agree(end_ns, other_ns, every_ns) for other_ns in ends_ns) > 1:
            return end_ns
    return ends_ns[-1] if ends_ns else None
