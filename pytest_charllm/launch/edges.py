"""When the sampler should look closely: around the moments at which a rank's window begins and ends. Pure.

A close look costs 5 to 10 ms of a core, so it pays to know the moment: the spans together are about 2 s a launch.
"""

from __future__ import annotations

from pytest_charllm.launch.request import Progress
from pytest_charllm.telemetry.dense import Span

BEGIN_S = 1.0
"""A rank tells of its window first and collects its garbage then: 0.36 to 0.56 s on an H200, so the beginning lies in
the middle of this."""
BEFORE_S, AFTER_S = 0.2, 0.3
EARLY_SHARE, LATE_SHARE = 0.02, 0.05
"""How far off the expected length a window may be: 15 on H200s lasted from 2.1 % less to 0.8 % more."""
_LATE_S = 5.0
"""A window that takes longer still is looked at for this long. The report that follows its end cuts that short."""


def edges(progress: Progress, now_ns: int) -> list[Span]:
    """The spans to announce as the first rank enters a phase.

    Passes that count the steps of their window, and sweeps their sizes, have no edge at any but the first.
    """

    def span(begin_s: float, end_s: float, last: bool = False) -> Span:
        return Span(now_ns + round(begin_s * 1e9), now_ns + round(end_s * 1e9), last)

    if progress.phase == "report":
        return [span(0.0, AFTER_S, last=True)]
    if progress.phase != "window" or progress.step:
        return []
    begin, expected_s = span(0.0, BEGIN_S), progress.expected_s
    if expected_s is None:
        return [begin]
    early_s = max(0.0, (1 - EARLY_SHARE) * expected_s - BEFORE_S)
    return [begin, span(early_s, (1 + LATE_SHARE) * expected_s + _LATE_S)]
