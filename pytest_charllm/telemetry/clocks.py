"""Three clocks held against each other: shows where wall time was stepped and where the machine was suspended."""

from __future__ import annotations

import time
from typing import NamedTuple

from pytest_charllm.records.telemetry import EventLine

STEP_S = 0.5
"""NTP slews the wall clock by 0.5 ms a second at most; more than this at once is a step."""
SUSPENDED_S = 0.1


class Instant(NamedTuple):
    mono_ns: int
    wall_ns: int
    boot_ns: int

    @classmethod
    def now(cls) -> Instant:
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0
        return cls(time.monotonic_ns(), time.time_ns(), boot_ns)

    def anchor(self) -> EventLine:
        return EventLine(
            kind="anchor", mono_ns=self.mono_ns, wall_s=self.wall_ns / 1e9, boot_ns=self.boot_ns or None, text=""
        )


def discontinuities(before: Instant, after: Instant) -> list[EventLine]:
    """What happened to the clocks between two instants that should be about a second apart."""
    elapsed_ns = after.mono_ns - before.mono_ns
    asleep_s = (after.boot_ns - before.boot_ns - elapsed_ns) / 1e9
    step_s = (after.wall_ns - before.wall_ns - elapsed_ns) / 1e9 - asleep_s
    events = []
    if asleep_s > SUSPENDED_S and before.boot_ns:
        text = f"the machine was suspended for {asleep_s:.1f} s"
        events.append(EventLine(kind="suspended", mono_ns=after.mono_ns, text=text))
    if abs(step_s) > STEP_S:
        events.append(
            EventLine(kind="clock-stepped", mono_ns=after.mono_ns, text=f"the wall clock was set by {step_s:+.1f} s")
        )
    return events
