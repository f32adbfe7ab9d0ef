"""When the next pass over a device is due, and when passes are so slow that there must be fewer. Pure."""

from __future__ import annotations

import random
from collections import deque

BUSY_SHARE = 0.3
"""A pass may take this much of the period (95th percentile); beyond, the rate is halved."""
_RECENT = 50
_ENOUGH = 20


class Pace:
    """A grid of due times with seeded jitter around each. Instants in monotonic nanoseconds; `start_ns`: any instant of
    the grid."""

    def __init__(self, *, period_s: float, jitter_s: float, seed: str, start_ns: int) -> None:
        self.period_s, self._start_ns = period_s, start_ns
        self._jitter_s = min(jitter_s, period_s / 4)
        self._rng = random.Random(seed)
        self._tick = self._tick_before = 0
        self._latencies: deque[int] = deque(maxlen=_RECENT)

    def wait_s(self, now_ns: int, at_least_s: float = 0.0) -> float:
        """Seconds until the next pass, on the first tick that is so long after the one before. Ticks that went by
        during a long read are skipped, never caught up."""
        elapsed = (now_ns - self._start_ns) / 1e9
        ticks = max(1, round(at_least_s / self.period_s))
        self._tick_before, self._tick = self._tick, max(self._tick + ticks, int(elapsed / self.period_s) + 1)
        jitter = self._jitter_s * (2 * self._rng.random() - 1)
        return max(0.0, self._tick * self.period_s + jitter - elapsed)

    def take_back(self) -> None:
        """No pass was made on the tick that `wait_s` told last: it is still to come, or one that is sooner."""
        self._tick = self._tick_before

    def too_slow(self, latency_ns: int) -> bool:
        """Note how long a pass took. True: passes take too long, and from now on the period is doubled."""
        self._latencies.append(latency_ns)
        # Only a slow pass lifts the percentile; sorting after each would cost as much as the pass.
        if latency_ns <= BUSY_SHARE * self.period_s * 1e9 or len(self._latencies) < _ENOUGH:
            return False
        p95_s = sorted(self._latencies)[int(0.95 * (len(self._latencies) - 1))] / 1e9
        if p95_s <= BUSY_SHARE * self.period_s:
            return False
        self.period_s *= 2
        self._tick = 0
        self._latencies.clear()
        return True
