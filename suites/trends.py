"""What tests about trends share: the same row with one thing changed, and what is said where a trend is broken."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import convert
from msgspec.structs import asdict, replace

from pytest_charllm import Layout, Scenario, TrendBroken
from pytest_charllm.scenario import Options


def with_options(scenario: Scenario, **options: Any) -> Scenario:
    """`options` as in `scenarios`: words for recomputation and precision."""
    return replace(scenario, options=convert({**asdict(scenario.options), **options}, Options))


def with_work(scenario: Scenario, **work: Any) -> Scenario:
    return replace(scenario, work=replace(scenario.training, **work))


def with_layout(scenario: Scenario, layout: Layout) -> Scenario:
    return replace(scenario, layout=layout)


def at_least(what: str, value: float, limit: float) -> None:
    """Raises `TrendBroken` where `value` is below `limit`."""
    if not value >= limit:
        raise TrendBroken(f"{what} {value:.4g}, expected at least {limit:.4g}")


def at_most(what: str, value: float, limit: float) -> None:
    """Raises `TrendBroken` where `value` is above `limit`."""
    if not value <= limit:
        raise TrendBroken(f"{what} {value:.4g}, expected at most {limit:.4g}")


def has_one_peak(what: str, values: Sequence[float], slack: float = 0.02) -> None:
    """Raises `TrendBroken` where the values do not rise to their largest and fall from there, but for a share of
    `slack` each time."""
    peak = values.index(max(values))
    for lower, higher in [*pairwise(values[: peak + 1]), *pairwise(reversed(values[peak:]))]:
        at_least(f"{what} toward the peak", higher, (1 - slack) * lower)
