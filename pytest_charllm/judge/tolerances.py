"""How far each metric may move before it is called: a table, one row a metric. Every number is here and nowhere else.

Floors are the smallest change that is ever called. Where they come from: launch-to-launch spread of unchanged code on
one H200 is 0.2 to 0.3 %, two cards differ by 0.7 %; energy and power sensors agree with themselves to a few percent;
on a CPU, Gate A of 16 launches of two DDP scenarios scattered by 0.8 to 1.1 % on quiet and busy machines alike.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Match(StrEnum):
    """Which recorded launches a value may be held against."""

    ANY = "any"
    CARD_WIDENS = "card widens"
    """Launches on the same devices if there are any; else all of them, with `other_card` as the floor."""
    CARD_AND_START = "card and start"
    """Only launches on the same devices that started within `START_BAND_C`; otherwise the metric is not judged."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are ratios (0.015 = 1.5 %) where the metric is relative, else in its unit.

    `floor`: the tolerance when nothing is known about noise. `cap`: noise never widens it beyond this.
    `prior_sigma`: launch-to-launch standard deviation assumed until enough launches are on record, None if unknown.
    `worst`: beyond this the metric is a regression whatever is on record. `and_at_least`: a change must also reach
    this many units. `any_launch`: one launch that has the value is enough, where otherwise most have to.
    `informational`: a move is a finding, never a verdict.
    """

    floor: float
    cap: float
    prior_sigma: float | None = None
    match: Match = Match.ANY
    other_card: float | None = None
    worst: float | None = None
    and_at_least: float = 0.0
    any_launch: bool = False
    informational: bool = False


NOISE_FACTOR = 3.5
"""Tolerance in robust standard deviations of a launch; about 0.2 % false alarms a check before confirmation."""
ENOUGH_SAMPLES = 8
"""Recorded launches from which on their spread replaces the prior."""
START_BAND_C = 3.0
BUSY = 1.25
"""Wall over CPU time of a window from which on wall time says nothing: quiet machines read 1.02 to 1.08."""

GPU: dict[str, Tolerance] = {
    "throughput": Tolerance(floor=0.015, cap=0.08, prior_sigma=0.005),
    "energy_per_token": Tolerance(floor=0.03, cap=0.08, prior_sigma=0.005),
    "mean_power": Tolerance(floor=0.03, cap=0.08, prior_sigma=0.005, match=Match.CARD_WIDENS, other_card=0.07),
    "core_temp_end": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START),
    "hbm_temp_end": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START),
    "margin_min": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START, worst=0.0),
    "throttle_sw_thermal": Tolerance(floor=0.02, cap=0.05),
    "throttle_hw": Tolerance(floor=0.001, cap=0.001, worst=0.001),
    "throttle_power_cap": Tolerance(floor=0.15, cap=0.15, informational=True),
    "peak_memory": Tolerance(floor=0.02, cap=0.05, prior_sigma=0.0),
    # Cold in a round's first launch only, and 10.6 to 16.0 s for the same scenario on three machines alike.
    "compile_time": Tolerance(floor=0.60, cap=1.0, and_at_least=5.0, any_launch=True),
}
"""What is judged on a GPU, in the order in which it is told."""

CPU: dict[str, Tolerance] = {
    "cost_cpu": Tolerance(floor=0.05, cap=0.08, prior_sigma=0.01),
    "cost_wall": Tolerance(floor=0.15, cap=0.25, prior_sigma=0.018),
}
"""What is judged on a CPU: Gate A and Gate B. Absolute speed of a CPU machine is not portable."""

GATES = {"cost_cpu": "Gate A", "cost_wall": "Gate B"}

CPU_REQUIRED = ("cost_cpu",)
"""Where speed is on record for this CPU, Gate A needs evidence for a PASS; Gate B may be kept out by a busy machine."""
