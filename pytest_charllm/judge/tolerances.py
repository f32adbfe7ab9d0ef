"""How far each metric may move before it is called: a table, one row a metric. Every number is here and nowhere else.

Floors are the smallest change that is ever called. Where they come from: launch-to-launch spread of unchanged code on
one H200 is 0.1 to 0.3 %, cards differ by 2 %, by 0.9 % once what is known of them is allowed for (`foreign`); energy
and power sensors agree with themselves to a few percent; on a CPU, Gate A of 16 launches of two DDP scenarios scattered
by 0.8 to 1.1 % on quiet and busy machines alike.
"""

from __future__ import annotations

from enum import StrEnum
from statistics import NormalDist

import msgspec


class Match(StrEnum):
    """Which recorded launches a value may be held against."""

    ANY = "any"
    CARD_WIDENS = "card widens"
    """Launches on the same devices if there are any; else all of them, with `other_card` as the floor."""
    CARD_AND_START = "card and start"
    """Only launches on the same devices that started within `START_BAND_C`; otherwise the metric is not judged."""
    OTHERWISE = "otherwise"
    """Judged only where there are none of those: what speaks of cooling without speaking of degrees."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are ratios (0.015 = 1.5 %) where the metric is relative, else in its unit.

    `floor`: the smallest change that is ever called against a stored baseline; `one_run_floor`: between launches of one
    run. `cap`: noise never widens the tolerance beyond this. `prior_sigma`: standard deviation assumed of each part of
    the noise that the record does not show yet, None if unknown. `other_card`: the floor where only other cards are on
    record, as `match` says; of a metric that a matrix product tells of cards, where that says nothing. `worst`: beyond
    this the metric is a regression whatever is on record. `and_at_least`: a change must also reach this many units.
    `any_launch`: one launch that has the value is enough, where otherwise most have to. `informational`: a move is a
    finding, never a verdict.
    """

    floor: float
    cap: float
    one_run_floor: float | None = None
    prior_sigma: float | None = None
    match: Match = Match.ANY
    other_card: float | None = None
    worst: float | None = None
    and_at_least: float = 0.0
    any_launch: bool = False
    informational: bool = False


CHECK_ALPHA = 0.001
"""Chance that a single round of unchanged code breaches by luck. Its confirmation has to breach as well."""
RUN_ALPHA = 0.1
"""Chance that any round of a whole run does, however many checks it makes: from 100 of them on this is what counts."""
CPU_FACTOR = 3.5
"""On a CPU the tolerance is that many standard deviations of a launch."""
EARLY_FACTOR = 1.0
"""Standard deviations more that a breach takes before its round is complete (Haybittle 1971, Peto et al. 1976)."""
CLEARED = 0.01
"""A round ends early as clear once its missing launches would turn it into a breach with at most this chance."""
POOLED_ALPHA = 0.023
"""Chance a run that siblings pooled breach by luck: two standard deviations. One check a run, not one of hundreds."""
POOLED_FLOOR = 0.01
POOLED_SIBLINGS = 4
"""Fewer scenarios are judged one by one alone."""
ENOUGH_SAMPLES = 8
"""Recorded launches, runs or cards from which on their spread replaces the prior of that part."""
LOCAL_RUNS = 5
"""Runs on record from the very cards at hand, from which on those of other cards are left aside."""
CARDS_APART = 0.05
"""Healthy cards of one model take up to this much longer for the same matrix product: of twelve H200s 3.8 %."""
DRAWS_ALL = 0.95
"""From this share of the power limit on as mean power, the card's watts set the speed: 96.6 % and more of ten scenarios
on H200s, at most 93.1 % of five that pause for their host or for communication. The share of time at the cap does not
tell them apart: 98.9 % and more, and up to 99.6 %."""
SURPRISE_ALPHA = 0.001
"""Chance that launches of the assumed noise are so far apart that their own spread is taken."""
SIBLING_WEIGHT = 8
"""The siblings' noise counts like this many degrees of freedom of the scenario's own."""
START_BAND_C = 3.0
BUSY = 1.25
"""Wall over CPU time of a window from which on wall time says nothing: quiet machines read 1.02 to 1.08."""

GPU: dict[str, Tolerance] = {
    "throughput": Tolerance(floor=0.015, one_run_floor=0.01, cap=0.08, prior_sigma=0.005),
    # Below the power cap a product tells nothing of a card: on three other pairs of H200s up to 4.9 % more, unchanged.
    "energy_per_token": Tolerance(floor=0.03, cap=0.08, prior_sigma=0.005, other_card=0.07),
    "mean_power": Tolerance(floor=0.03, cap=0.08, prior_sigma=0.005, match=Match.CARD_WIDENS, other_card=0.07),
    # The 99.5th percentile of instant power: three launches of five scenarios on one H200 were up to 5 % apart.
    "peak_power": Tolerance(floor=0.10, cap=0.15, match=Match.CARD_AND_START),
    "core_temp_end": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START),
    "hbm_temp_end": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START),
    "margin_min": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_AND_START, worst=0.0),
    # Between cards, and between cold and warm starts, degrees say little; what a watt heats says more.
    "heating": Tolerance(floor=0.15, cap=0.40, match=Match.OTHERWISE, other_card=0.30),
    "core_temp_spread": Tolerance(floor=10.0, cap=15.0, match=Match.OTHERWISE),
    "throttle_sw_thermal": Tolerance(floor=0.02, cap=0.05),
    "throttle_hw": Tolerance(floor=0.001, cap=0.001, worst=0.001),
    "throttle_power_cap": Tolerance(floor=0.15, cap=0.15, informational=True),
    "peak_memory": Tolerance(floor=0.02, cap=0.05, prior_sigma=0.0),
    # Cold in a round's first launch only, and 10.6 to 16.0 s for the same scenario on three machines alike.
    "compile_time": Tolerance(floor=0.60, cap=1.0, and_at_least=5.0, any_launch=True),
}
"""What is judged on a GPU, in the order in which it is told. Floors are those of the one measured so far, an H200."""

CPU: dict[str, Tolerance] = {
    "cost_cpu": Tolerance(floor=0.05, cap=0.08, prior_sigma=0.01),
    "cost_wall": Tolerance(floor=0.15, cap=0.25, prior_sigma=0.018),
}
"""What is judged on a CPU: Gate A and Gate B. Absolute speed of a CPU machine is not portable."""

GATES = {"cost_cpu": "Gate A", "cost_wall": "Gate B"}

CPU_REQUIRED = ("cost_cpu",)
"""Where speed is on record for this CPU, Gate A needs evidence for a PASS; Gate B may be kept out by a busy machine."""

SMOKE: dict[str, Tolerance] = {
    # Single launches, of some 50 samples: one of nine of unchanged code stood out by 4.8 %.
    "peak_power": Tolerance(floor=0.15, cap=0.20, match=Match.CARD_AND_START),
}
"""What short windows widen. Throughput's own floor holds: it comes from windows of 5 s."""

UNMEASURED = 2.0
"""Floors and caps of speed, energy and power on a GPU whose scatter nobody has measured yet, in those of the H200."""
MEASURED = ("h200-sxm",)


def rules_for(variant: str, tier_name: str, is_cpu: bool) -> dict[str, Tolerance]:
    """Every judged metric's rule on this hardware in this tier, in the order in which it is told."""
    if is_cpu:
        return CPU
    rules = GPU if variant in MEASURED else {metric: _unmeasured(rule) for metric, rule in GPU.items()}
    return rules | SMOKE if tier_name == "smoke" else rules


def noise_factor(checks: int = 1) -> float:
    """k, the standard deviations that a tolerance holds when a run makes this many checks: 3.09 for up to 100 of them.

    The normal quantile of `CHECK_ALPHA`, or of `RUN_ALPHA` shared evenly among the checks (Bonferroni) where that is
    less. `benchmarks/judge_simulated.py` shows what comes of it where the noise itself is estimated.
    """
    return NormalDist().inv_cdf(1 - min(CHECK_ALPHA, RUN_ALPHA / max(1, checks)))


def _unmeasured(rule: Tolerance) -> Tolerance:
    if not rule.prior_sigma:
        return rule
    return msgspec.structs.replace(
        rule,
        floor=UNMEASURED * rule.floor,
        cap=UNMEASURED * rule.cap,
        one_run_floor=None if rule.one_run_floor is None else UNMEASURED * rule.one_run_floor,
        other_card=None if rule.other_card is None else UNMEASURED * rule.other_card,
    )
