from __future__ import annotations

from random import Random

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
    slowed = [pace.too_slow(50 * MS, i * S // 10) for i in range(100)]
    assert slowed.count(True) == 1
    assert pace.period_s == 0.2


def test_rare_spikes_do_not_slow():
    """Driver calls spike now and then; only a habit counts."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    assert not any(pace.too_slow(90 * MS if i % 40 == 5 else 2 * MS, 0) for i in range(400))


def waits(pace: Pace, busy_from_ms: int, busy_ms: int, passes: int, now_ns: int = 0) -> list[float]:
    """Milliseconds that each pass had to wait for the end of the device's own work, which comes every 100 ms."""
    dear_ms, waited = 4, []
    for _ in range(passes):
        now_ns += round(pace.wait_s(now_ns) * S)
        into_ns = (now_ns - busy_from_ms * MS) % (100 * MS)
        waits_ns = max(0, busy_ms * MS - into_ns)
        latency_ns = dear_ms * MS + waits_ns
        now_ns += latency_ns
        waited.append(waits_ns / MS)
        pace.keep_clear("dear", latency_ns, now_ns)
    return waited


@given(st.integers(0, 99), st.integers(12, 20))
def test_ticks_keep_clear_of_what_the_device_does_itself(busy_from_ms, busy_ms):
    """On an H200 launches had 2 or 14 dear reads of three times the usual length, all of them CPU time, by the phase
    that the grid happened to have to the card's own 100 ms."""
    pace = Pace(period_s=0.1, jitter_s=0.02, seed="s", start_ns=0)
    waited = waits(pace, busy_from_ms, busy_ms, 300)
    assert sum(each_ms > 5 for each_ms in waited) <= 12
    assert sum(waited) <= 200


@given(st.integers(0, 99))
def test_what_was_learnt_serves_the_next_recording(busy_from_ms):
    """A kept sampler begins a trace for each launch: without it each would pay for the first edge again."""
    first = Pace(period_s=0.1, jitter_s=0.02, seed="s", start_ns=0)
    if max(waits(first, busy_from_ms, 15, 100)) > 5:
        again = Pace(period_s=0.1, jitter_s=0.02, seed="t", start_ns=first.start_ns)
        assert max(waits(again, busy_from_ms, 15, 100, now_ns=30 * S)) == 0


def test_a_device_that_is_always_slow_keeps_its_pace():
    """Only what comes and goes can be avoided: reads that all take long must not push the ticks away for ever."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    now_ns = 0
    for _ in range(50):
        now_ns += round(pace.wait_s(now_ns) * S) + 25 * MS
        pace.keep_clear("dear", 25 * MS, now_ns)
    assert now_ns == pytest.approx(5.025 * S)


def test_a_pass_is_measured_against_its_own_sort():
    """A pass over all takes twice as long as one at an edge, without having waited."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=0)
    pace.wait_s(2 * S)
    pace.keep_clear("edge", 3 * MS, 2103 * MS)
    pace.keep_clear("all", 12 * MS, 2112 * MS)
    assert pace.wait_s(2112 * MS) == pytest.approx(0.088)
    pace.keep_clear("all", 18 * MS, 2218 * MS)
    assert pace.wait_s(2218 * MS) == pytest.approx(0.105)


def test_reads_that_scatter_cost_no_coverage():
    """Of a device whose reads take 4 to 29 ms by chance each moved the grid by itself: 7.5 passes a second, for 10."""
    pace, chance = Pace(period_s=0.1, jitter_s=0.02, seed="s", start_ns=0), Random(1)
    now_ns = passes = 0
    while now_ns < 30 * S:
        now_ns += round(pace.wait_s(now_ns) * S)
        latency_ns = round(chance.uniform(4, 29) * MS)
        now_ns += latency_ns
        pace.keep_clear("dear", latency_ns, now_ns)
        passes += 1
    assert passes > 285


def test_doubling_the_period_keeps_the_phase():
    """What the slow passes taught is handed to the next recording."""
    pace = Pace(period_s=0.1, jitter_s=0.0, seed="s", start_ns=12 * MS)
    assert any(pace.too_slow(50 * MS, i * S // 10) for i in range(30))
    assert pace.start_ns == 12 * MS


def test_jitter_of_a_read_does_not_move_the_grid():
    """A grid that moves on every difference wanders over the device's own work instead of keeping clear of it."""
    pace = Pace(period_s=0.1, jitter_s=0.02, seed="a", start_ns=0)
    now_ns = 0
    for number in range(60):
        now_ns += round(pace.wait_s(now_ns) * S)
        pace.keep_clear("all", (4 + 4 * (number % 2)) * MS, now_ns)
    assert pace.start_ns == 0
    now_ns += round(pace.wait_s(now_ns) * S)
    pace.keep_clear("all", 10 * MS, now_ns)
    assert pace.start_ns > 0


def test_a_slow_first_pass_is_no_slow_device():
    """An H200's first pass opens what the later ones find open: 21 to 36 ms, where 30 of a period's 100 are allowed."""
    pace = Pace(period_s=0.1, jitter_s=0.02, seed="a", start_ns=0)
    assert not any(pace.too_slow(latency_ns, 0) for latency_ns in [36 * MS, *[MS] * 18])
    assert pace.period_s == 0.1
