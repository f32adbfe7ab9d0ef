"""Numbers as they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records import METRICS
from pytest_charllm.report.numbers import significant, value


@pytest.mark.parametrize(
    ("metric", "number", "text"),
    [
        ("throughput", 40_772.3, "40,772"),
        ("throughput", 1_234_567.0, "1,234,567"),
        ("throughput", 99.96, "100"),
        ("energy_per_token", 0.01442, "14.4 mJ"),
        ("energy_per_token", 0.52, "0.520 J"),
        ("mean_power", 588.4, "588"),
        ("core_temp_end", 61.0, "61.0"),
        ("margin_min", -2.0, "-2.0"),
        ("step_time", 0.0931, "93.1 ms"),
        ("compile_time", 12.44, "12.4 s"),
        ("peak_memory", 76_558_000_000.0, "71.3 GiB"),
        ("peak_memory", 5.4e8, "515 MiB"),
        ("throttle_hw", 0.0012, "0.1 %"),
        ("cost_cpu", 7.654, "7.65"),
        ("sm_clock", 1425.0, "1,425"),
        ("mean_power", None, ""),
    ],
)
def test_units(metric: str, number: float | None, text: str) -> None:
    """Thousands separated, millijoules where joules would be zeros, nothing where nothing was measured."""
    assert value(metric, number) == text


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_prints(metric: str) -> None:
    """A new metric in the table must not break the report."""
    assert value(metric, 1.5)


@given(st.floats(1e-9, 1e12), st.sampled_from([1, -1]))
def test_significant_is_close(number: float, sign: int) -> None:
    """Whatever the size: within half a unit of the third digit, never in exponent form, and it reads back."""
    text = significant(sign * number)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(sign * number, rel=0.006)
