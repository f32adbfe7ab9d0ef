"""What is on record beside a launch's own values: the parts of a traced step, and what each rank said by itself."""

from __future__ import annotations

import statistics

from pytest_charllm.records import METRICS, BaselineStack
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import grid


def asides(stack: BaselineStack) -> tuple[str, str]:
    """A table each; "" for what is not on record."""
    return _traced(stack), _per_rank(stack)


def _traced(stack: BaselineStack) -> str:
    rows = [(METRICS[part].title, value(part, stack.traced[part])) for part in TRACED_METRICS if part in stack.traced]
    return grid(("traced step", "one launch"), rows, ("one launch",))


def _per_rank(stack: BaselineStack) -> str:
    """The lowest and the highest of all ranks, medians over the launches: a line a metric, however many there are."""
    rows = []
    for metric in METRICS:
        known = [(number, str(rank)) for rank, number in enumerate(_ranks(stack, metric)) if number is not None]
        if not known:
            continue
        (lowest, first), (highest, last) = min(known), max(known)
        ends = value(metric, lowest), value(metric, highest)
        at = ("", "") if ends[0] == ends[1] else (first, last)
        rows.append((METRICS[metric].title, ends[0], at[0], ends[1], at[1]))
    headers = ("per rank", "lowest", "rank", "highest", "rank")
    return grid(headers, rows, headers[1:])


def _ranks(stack: BaselineStack, metric: str) -> list[float | None]:
    launches = [sample.per_rank[metric] for sample in stack.samples if metric in sample.per_rank]
    ranks = [[number for number in column if number is not None] for column in zip(*launches, strict=False)]
    return [statistics.median(numbers) if numbers else None for numbers in ranks]
