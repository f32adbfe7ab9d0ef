"""Old against new, metric by metric: what a reviewer of a baseline wants to see."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pytest_charllm.judge.tolerances import rules_for
from pytest_charllm.judge.wording import moved
from pytest_charllm.records import METRICS, BaselineStack, Stack
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import grid, pairs

Values = Mapping[str, float]


def medians(launches: Sequence[Values]) -> dict[str, float]:
    """Of every metric that some launch has, in the order of the metric table."""
    return {
        metric: statistics.median(numbers)
        for metric in METRICS
        if (numbers := [launch[metric] for launch in launches if metric in launch])
    }


def medians_of(stack: BaselineStack) -> dict[str, float]:
    return medians([sample.values for sample in stack.samples])


def compared(old: Values, new: Values, variant: str) -> str:
    """A line a metric with its change, marked where that is beyond the floor of its tolerance."""
    rules = rules_for(variant, "nightly", is_cpu=variant == "cpu")
    rows = []
    for metric in METRICS:
        if metric not in old and metric not in new:
            continue
        before, now = old.get(metric), new.get(metric)
        change = None if before is None or now is None else _change(metric, before, now)
        rule = rules.get(metric)
        beyond = rule is not None and change is not None and abs(change) > rule.floor
        rows.append(
            (
                METRICS[metric].title,
                value(metric, before) or "none",
                value(metric, now) or "none",
                "" if change is None else moved(metric, change),
                "beyond the floor" if beyond else "",
            )
        )
    headers = ("metric", "old", "new", "change", "")
    return grid(headers, rows, headers[1:4])


def provenance(old: BaselineStack, new_stack: Stack, new: Sequence[tuple[str, str]]) -> str:
    """Where both come from, and what software changed."""
    changed = ", ".join(f"{part} {was} -> {now}" for part, was, now in old.stack.diff(new_stack))
    return pairs(
        [
            ("old", f"run {old.run_id}, accepted {old.accepted[:10]}: {old.because}"),
            *new,
            ("changed", changed or "no software"),
        ]
    )


def _change(metric: str, before: float, now: float) -> float | None:
    if not METRICS[metric].relative:
        return now - before
    return now / before - 1 if before > 0 else None
