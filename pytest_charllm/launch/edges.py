"""When the sampler should look closely, at the moments at which a rank's window begins and ends, and when it may rest:
long before, while ranks start, build and compile, which is half of a launch, and while they report. Pure.

Reading all takes 5 to 10 ms of a core, so it pays to know the moment.
"""

from __future__ import annotations

from pytest_charllm.launch.request import Progress
from pytest_charllm.telemetry.dense import Kind, Span

BEGIN_S = 0.45
"""A rank tells of its window and collects its garbage once more then: 0.18 to 0.28 s on an H200, which is known up to
0.1 s later. So the beginning has two refreshes of an energy counter behind it within this."""
GARBAGE_S = 0.05
"""The end is at least so much later than the window is long."""
AFTER_S = 0.1
"""That a window has ended is known 0.1 to 0.2 s later. Some 0.2 s after that the ranks give their memory back, and a
read of all waits for it: 13 ms on the mean, up to 37 ms, in the place of 6."""
EARLY_SHARE, LATE_SHARE = 0.01, 0.05
"""How far off the expected length a window may be: on H200s at their cap from 0.5 % less to 3 % more. One that is held
up by its host may end up to 10 % sooner: then readings a second apart lie around its end."""
_LATE_S = 5.0
"""A window that takes longer still is looked at for this long. The report that follows its end cuts that short."""
START_S = 0.95
"""The sampler's first second tells how warm a device is before any load; at the end of it all would be read again."""
REST_S = NEAR_S = 120.0
"""What nobody ends is over then."""
_BEFORE_WARMUP = ("build", "compile")


def edges(progress: Progress, now_ns: int, *, warms_up: bool) -> list[Span]:
    """The spans to announce as the first rank enters a phase. `warms_up`: the window comes after a phase "warm-up", so
    until then nothing is judged. Where a script's window lies is only known afterwards: it never rests.

    Passes that count the steps of their window, and sweeps their sizes, have no edge at any but the first.
    """

    def span(begin_s: float, end_s: float, kind: Kind = Kind.DENSE) -> Span:
        return Span(now_ns + round(begin_s * 1e9), now_ns + round(end_s * 1e9), kind)

    if warms_up and progress.phase == "start":
        return [span(START_S, REST_S, Kind.REST)]
    if warms_up and progress.phase in _BEFORE_WARMUP:
        return [span(max(0.0, START_S - progress.elapsed_s), REST_S, Kind.REST)]
    if progress.phase == "warm-up":
        return [span(0.0, NEAR_S, Kind.NEAR)]
    if progress.phase == "report":
        after = span(0.0, AFTER_S, Kind.LAST)
        return [after, span(AFTER_S, REST_S, Kind.REST)] if warms_up else [after]
    if progress.phase != "window" or progress.step:
        return []
    begin, expected_s = span(0.0, BEGIN_S), progress.expected_s
    if expected_s is None:
        return [begin]
    return [begin, span(GARBAGE_S + (1 - EARLY_SHARE) * expected_s, (1 + LATE_SHARE) * expected_s + _LATE_S)]
