"""Counters of 32 bits that run over: put together where only one overflow is possible, else given up. Pure."""

from __future__ import annotations

RANGE = 1 << 32


class Unwrapped:
    """A byte counter of 32 bits as one that does not wrap. `fastest` is the most bytes a second that it can count."""

    def __init__(self, fastest: float) -> None:
        self.provable_s = RANGE / fastest
        """Readings further apart than this may hide a whole round."""
        self._last: tuple[int, int] | None = None
        self._total = 0

    def total(self, raw: int, mono_ns: int) -> int | str:
        """Bytes since the first reading, or why that is not known. From there on it counts from zero again, so that
        a difference across the hole is a fall, which no one takes for traffic."""
        last, self._last = self._last, (raw, mono_ns)
        if last is None:
            return 0
        elapsed_s = (mono_ns - last[1]) / 1e9
        if elapsed_s >= self.provable_s:
            self._total = 0
            return f"a 32-bit counter unread for {elapsed_s:.2f} s may have wrapped more than once"
        self._total += (raw - last[0]) % RANGE
        return self._total
