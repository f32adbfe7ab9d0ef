from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.launch.edges import UNSURE_SHARE, edges
from pytest_charllm.launch.request import Progress

S = 1_000_000_000


def spans(phase: str, expected_s: float | None = None) -> list[tuple[float, float]]:
    """Seconds from now."""
    told = edges(Progress(phase, None, None, 1.0, expected_s), 100 * S)
    return [((begin_ns - 100 * S) / S, (end_ns - 100 * S) / S) for begin_ns, end_ns in told]


@given(st.floats(0.01, 3600.0), st.floats(1 - UNSURE_SHARE, 1 + UNSURE_SHARE))
def test_a_window_is_announced_at_both_ends(expected_s, off):
    """The energy counter is read once a second: without dense reads an edge lies up to a second from any of them."""
    covered = spans("window", expected_s)
    for moment in (0.0, 0.3, max(0.0, off * expected_s - 0.4), off * expected_s + 0.4):
        assert any(begin <= moment < end for begin, end in covered), moment


def test_the_middle_of_a_long_window_is_left_alone():
    """Dear reads at 10 Hz for a whole window would cost more than the sampler may."""
    assert not any(begin <= 30.0 < end for begin, end in spans("window", 60.0))


def test_a_window_may_begin_with_every_end_of_a_group():
    """Warm-up ends by a rule that only the ranks know; the span lies around the moment at which it may."""
    ((begin, end),) = spans("warm-up", 2.0)
    assert begin < 2.0 < end
    assert spans("warm-up") == [(pytest.approx(4.25), pytest.approx(5.75))]


def test_other_phases_announce_nothing():
    """Importing and compiling have no edge in them; the report follows the end of the window."""
    assert spans("start") == spans("build") == spans("compile") == []
    assert len(spans("report")) == 1
