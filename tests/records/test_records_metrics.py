"""Names of metrics: the ids of files and tests, and what tables and lines print."""

from __future__ import annotations

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.records import METRICS, metric_named
from pytest_charllm.report.table import HEADERS

TOGETHER = {"scenario", "verdict", "checks", "core/HBM degC", "why"}
"""Columns that are no metric of their own."""


@pytest.mark.parametrize("metric", METRICS)
def test_every_printed_name_means_one_metric(metric: str) -> None:
    """A title that two metrics share would let a waiver hold for the wrong one."""
    assert {metric_named(name) for name in (metric, METRICS[metric].title, metric.replace("_", " "))} == {metric}


@pytest.mark.parametrize("header", sorted(set(HEADERS) - TOGETHER))
def test_columns_of_the_summary_are_names(header: str) -> None:
    """What stands over a column was refused by known.toml and by value()."""
    assert METRICS[metric_named(header)].title == header


def test_unknown_names_are_told_what_is_close() -> None:
    """The message was a wall of all ids, in which nobody finds theirs."""
    with pytest.raises(BadInput, match="metric 'thruput' is not known; did you mean throughput") as close:
        metric_named("thruput")
    with pytest.raises(BadInput, match="metric 'watts' is not known; write it as tables print it, or its id in") as far:
        metric_named("watts")
    assert max(len(str(told.value)) for told in (close, far)) < 200
