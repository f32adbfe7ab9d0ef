"""When warm-up ends, and how long the window will be. Pure: every rank decides alike from the same step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from pytest_charllm.records.launch import Warmup, WindowRule

_MARGIN = 1.02
"""A window is planned a little longer than asked for, so that a slightly faster step does not cut it short."""


def warmup_ended(rule: WindowRule, step_s: Sequence[float]) -> Warmup | None:
    """What warm-up came to after steps of these times, or None where it goes on.

    The first step builds and compiles: it counts as a step, but not towards `warmup_seconds`, in which the device is
    to get warm.
    """
    steps, group, spent_s = len(step_s), rule.steady_steps, sum(step_s[1:])
    if steps >= max(rule.warmup_steps, 2 * group + 1) and spent_s >= rule.warmup_seconds:
        last, before = median(step_s[-group:]), median(step_s[-2 * group : -group])
        change = abs(last / before - 1)
        if change < rule.steady_ratio:
            return Warmup(steps=steps, steady=True, reason=f"last two groups of {group} differ by {100 * change:.1f} %")
    if steps < rule.warmup_max_steps:
        return None
    reason = f"not steady within {100 * rule.steady_ratio:.1f} % after {steps} steps"
    return Warmup(steps=steps, steady=False, reason=reason)


def steady_step_s(rule: WindowRule, step_s: Sequence[float]) -> float:
    """Seconds of one step at the end of warm-up: the median of the last group."""
    return median(step_s[-rule.steady_steps :])


def known_steps(rule: WindowRule) -> int | None:
    """Steps of every window of this rule; None where that depends on how long a step takes."""
    return None if rule.min_seconds else rule.min_steps


def window_steps(rule: WindowRule, step_s: float) -> int:
    """Steps of a window that reaches both minima of the rule when a step takes `step_s` seconds."""
    return max(rule.min_steps, math.ceil(_MARGIN * rule.min_seconds / step_s))
