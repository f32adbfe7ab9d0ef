"""Whether the launches of one run agree well enough with each other to go on record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.judge.wording import name
from pytest_charllm.records import Measurement, numbers_of

AGREEMENT_LAUNCHES = 5
AGREEMENT_COV = 0.015
"""On a CPU speed goes on record only where this many launches stay within this coefficient of variation."""


def agreement(measurements: Sequence[Measurement], metric: str) -> float | None:
    """Coefficient of variation (sample standard deviation over mean) of one metric, 0.015 = 1.5 %.

    None with fewer than two launches, or where a launch has no value: what was not measured cannot agree.
    """
    numbers = numbers_of(measurements, metric)
    if len(numbers) < 2 or len(numbers) < len(measurements):
        return None
    return statistics.stdev(numbers) / abs(statistics.fmean(numbers))


def too_far_apart(measurements: Sequence[Measurement], metric: str, limit: float) -> str:
    """Why these launches are too uncertain for others to be held against them; "" where they agree within `limit`."""
    cov = agreement(measurements, metric)
    if cov is None:
        return f"not every launch has a {name(metric)} value"
    if cov > limit:
        scatter = f"{100 * cov:.2f} % (CoV), more than {100 * limit:.1f} %"
        return f"{name(metric)} of the {len(measurements)} launches scatters by {scatter}"
    return ""
