from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.telemetry.pace import Pace

S = 1_000_000_000
MS = 1_000_000


def due_times(pace: Pace, start_ns: int, passes: int, pass_ns: int = 0) -> list[float]:
    """Seconds after the start at which passes begin, when each takes `pass_ns`."""
    now_ns, due = start_ns, []
    for _ in range(passes):
        now_ns += round(pace.wait_s(now_ns) * S)
        due.append((now_ns - start_ns) / S)
        now_ns += pass_ns
    return due


def test_the_rate_holds_and_every_pass_is_moved():
    """Without jitter a 100 ms step would be sampled at one and the same phase for a whole launch."""
    due = due_times(Pace(period_s=0.1, jitter_s=0.02, seed="a", start_ns=5 * S), 5 * S, 200)
    off_grid = [time - 0.1 * tick for tick, time in enumerate(due, start=1)]
    assert all(abs(off) <= 0.0201 for off in off_grid)
    assert max(off_grid) - min(off_grid) > 0.03
    assert due == due_times(Pace(period_s=0.1, jitter_s=0.02, seed="a", start_ns=5 * S), 5 * S, 200)
    assert due != due_times(Pace(period_s=0.1, jitter_s=0.02, seed="b", start_ns=5 * S), 5 * S, 200)


@given(st.integers(0, 5 * S), st.floats(0.001, 1.0))
def test_time_never_runs_backwards(pass_ns, period_s):
    """However long a read takes, the wait is never negative nor longer than a period and its jitter."""
    pace = Pace(period_s=period_s, jitter_s=0.02, seed="s", start_ns=0)
    now_ns = 0
    for _ in range(20):
        wait_s = pace.wait_s(now_ns)
        assert 0 <= wait_s <= 2 * period_s
        now_ns += round(wait_s * S) + pass_ns


def test_missed_ticks_are_skipped():
    """Catching up after a stall would read a card twenty times in a row, of which it answers one."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    pace.wait_s(0)
    assert pace.wait_s(2 * S + 30 * MS) > 0.06


def test_a_rest_is_spaced_on_the_same_grid_and_ends_at_once():
    """Woken in the middle of a rest, the next pass is a period later, not as far as the rest had reached."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    assert pace.wait_s(0, at_least_s=0.5) == pytest.approx(0.5)
    assert pace.wait_s(S // 2, at_least_s=0.5) == pytest.approx(0.5)
    pace.take_back()
    assert pace.wait_s(730 * MS) == pytest.approx(0.07)
    pace.take_back()
    assert pace.wait_s(760 * MS) == pytest.approx(0.04)


def test_slow_passes_halve_the_rate_once_each():
    """A pass of half the period disturbs the training it measures; at the halved rate the same pass is fine."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    slowed = [pace.too_slow(50 * MS) for _ in range(100)]
    assert slowed.count(True) == 1
    assert pace.period_s == 0.2


def test_rare_spikes_do_not_slow():
    """Driver calls spike now and then; only a habit counts."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    assert not any(pace.too_slow(90 * MS if i % 40 == 5 else 2 * MS) for i in range(400))


def test_a_slow_first_pass_is_no_slow_device():
    """An H200's first pass opens what the later ones find open: 21 to 36 ms, where 30 of a period's 100 are allowed."""
    pace = Pace(period_s=0.1, jitter_s=0.02, seed="a", start_ns=0)
    assert not any(pace.too_slow(latency_ns) for latency_ns in [36 * MS, *[MS] * 18])
    assert pace.period_s == 0.1
