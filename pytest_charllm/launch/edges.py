"""When the sampler should look closely: around the moments at which a rank's window begins and ends. Pure."""

from __future__ import annotations

from pytest_charllm.launch.request import Progress
from pytest_charllm.telemetry.dense import Span

BEFORE_S, AFTER_S = 0.5, 0.5
UNSURE_SHARE = 0.05
"""How far off the expected length of a window or a group of warm-up steps may be."""
_LATE_S = 5.0
"""A window that takes longer than expected is looked at for this long; then its report will announce the end."""
_UNKNOWN_S = 5.0


def edges(progress: Progress, now_ns: int) -> list[Span]:
    """The spans to announce as the first rank enters a phase.

    Each group of warm-up steps may be the last, so the window may begin when it ends. A window's own beginning is now.
    """
    if progress.phase == "warm-up":
        return [_around(now_ns, progress.expected_s if progress.expected_s is not None else _UNKNOWN_S, AFTER_S)]
    if progress.phase == "window":
        begin = [Span(now_ns, now_ns + round(AFTER_S * 1e9))]
        return begin if progress.expected_s is None else [*begin, _around(now_ns, progress.expected_s, _LATE_S)]
    return [Span(now_ns, now_ns + round(AFTER_S * 1e9))] if progress.phase == "report" else []


def _around(now_ns: int, expected_s: float, after_s: float) -> Span:
    early_s = max(0.0, (1 - UNSURE_SHARE) * expected_s - BEFORE_S)
    late_s = (1 + UNSURE_SHARE) * expected_s + after_s
    return Span(now_ns + round(early_s * 1e9), now_ns + round(late_s * 1e9))
