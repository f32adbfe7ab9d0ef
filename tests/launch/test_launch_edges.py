from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.launch.edges import EARLY_SHARE, LATE_SHARE, edges
from pytest_charllm.launch.request import Progress
from pytest_charllm.telemetry.dense import Spans

S = 1_000_000_000


def spans(phase: str, expected_s: float | None = None, step: int | None = None) -> list[tuple[float, float]]:
    """Seconds from now."""
    told = edges(Progress(phase, step, None, 1.0, expected_s), 100 * S)
    return [((each.begin_ns - 100 * S) / S, (each.end_ns - 100 * S) / S) for each in told]


@given(st.floats(0.01, 3600.0), st.floats(1 - EARLY_SHARE, 1 + LATE_SHARE))
def test_a_window_is_announced_at_both_ends(expected_s, off):
    """The energy counter is read once a second: without dense reads an edge lies up to a second from any of them."""
    covered = spans("window", expected_s)
    for moment in (0.0, 0.3, max(0.0, off * expected_s - 0.1), off * expected_s + 0.4):
        assert any(begin <= moment < end for begin, end in covered), moment


def test_the_middle_of_a_long_window_is_left_alone():
    """Dear reads at 10 Hz for a whole window would cost more than the sampler may."""
    assert not any(begin <= 30.0 < end for begin, end in spans("window", 60.0))


@pytest.mark.parametrize(("phase", "step"), [("warm-up", 8), ("compile", None), ("window", 3), ("start", None)])
def test_what_is_no_edge_is_not_announced(phase, step):
    """Warm-up is a row of short groups: looking closely at the end of each was half of what the sampler cost."""
    assert spans(phase, 2.0, step) == []


def test_the_report_ends_the_close_look():
    """It follows the end of the window, however late that was; calibration comes next, and is no edge."""
    announced = Spans()
    for phase, at_s in (("window", 0.0), ("report", 11.4)):
        for span in edges(Progress(phase, None, None, 1.0, 10.0), round(at_s * S)):
            announced.add(span, round(at_s * S))
    assert [announced.covers(round(at_s * S)) for at_s in (11.4, 11.6, 11.8, 12.5)] == [True, True, False, False]
