"""When warm-up ended, by the times a log tells: the rule of the native engine, for lines that are means over steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_charllm.records import Warmup, WindowRule


def warmup_of(rule: WindowRule, spans: Sequence[int], step_s: Sequence[float]) -> tuple[int, Warmup] | None:
    """Entries that belong to warm-up and what it came to; None where the log ends before it does.

    A group is as many entries as hold `steady_steps` optimizer steps, so that a log with a line every step is treated
    as the native engine treats its steps. The first entry builds and compiles: it is in no group.
    """
    steps, spent_s = 0, 0.0
    for end in range(1, len(spans) + 1):
        steps += spans[end - 1]
        spent_s += spans[end - 1] * step_s[end - 1] if end > 1 else 0.0
        middle = _group(rule, spans, end)
        begin = None if middle is None else _group(rule, spans, middle)
        if begin is None or steps < rule.warmup_steps:
            continue
        change = abs(median(step_s[middle:end]) / median(step_s[begin:middle]) - 1)
        if change < rule.steady_ratio and spent_s >= rule.warmup_seconds:
            reason = f"last two groups of {rule.steady_steps} steps differ by {100 * change:.1f} %"
            return end, Warmup(steps=steps, steady=True, reason=reason)
        if steps >= rule.warmup_max_steps:
            reason = f"not steady within {100 * rule.steady_ratio:.1f} % after {steps} steps"
            return end, Warmup(steps=steps, steady=False, reason=reason)
    return None


def _group(rule: WindowRule, spans: Sequence[int], end: int) -> int | None:
    """First entry of the group that ends before entry `end`; None where it would need the very first entry."""
    steps = 0
    for begin in range(end - 1, 0, -1):
        steps += spans[begin]
        if steps >= rule.steady_steps:
            return begin
    return None
