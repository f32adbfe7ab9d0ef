from __future__ import annotations

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.telemetry.beat import BEAT_NS, LONG_NS, Beat

MS = 1_000_000
USUAL_MS = 5


def busy_ns(now_ns: int, phase_ms: float) -> int:
    """How long until an H200 is done with its own work: 5 ms of every 20, of every fifth time 15 ms."""
    into_ns = round(now_ns - phase_ms * MS) % LONG_NS
    return max(0, (15 if into_ns < BEAT_NS else 5) * MS - into_ns % BEAT_NS)


def waits(beat: Beat, phase_ms: float, passes: int, *, began_s: float = 0.0, noise: float = 0.0) -> list[float]:
    """Milliseconds that each pass, once a second but for jitter, waits for that work, or would without `noise`, the
    share of passes that take longer for some other reason."""
    chance, waited = Random(1), []
    for number in range(passes):
        now_ns = round((began_s + number) * 1000 * MS) + round(chance.uniform(-20, 20) * MS)
        now_ns += beat.hold_ns(now_ns)
        waits_ns = busy_ns(now_ns, phase_ms)
        waited.append(waits_ns / MS)
        other_ns = round(chance.uniform(1, 12) * MS) if chance.random() < noise else 0
        latency_ns = USUAL_MS * MS + waits_ns + other_ns
        beat.learn("all", latency_ns, now_ns + latency_ns)
    return waited


@pytest.mark.parametrize(("noise", "at_most_ms"), [(0.0, 3), (0.05, 15)])
def test_what_was_learnt_keeps_reads_clear(noise, at_most_ms):
    """A third of what dear reads took on an H200 was waiting, spinning, for what the card does itself."""
    waited, once_learnt = [], []
    for phase_ms in range(100):
        beat = Beat()
        waits(beat, phase_ms, 40, noise=noise)
        once_learnt.append(sum(waits(beat, phase_ms, 40, began_s=100.0, noise=noise)))
        waited.append(sum(busy_ns(round((phase_ms + 7 * k) * MS), 0) / MS for k in range(40)))
    assert statistics.mean(waited) > 70
    assert statistics.mean(once_learnt) < at_most_ms


def test_a_clock_that_drifts_is_followed():
    """The card's 20 ms were 20.0003 ms of the host's clock: a millisecond in a minute."""
    for phase_ms in range(0, 100, 7):
        beat = Beat()
        waits(beat, phase_ms, 40)
        waited = [each for k in range(1, 10) for each in waits(beat, phase_ms + k, 40, began_s=60.0 * k)]
        assert sum(waited) < 9 * 65 / 2


def test_one_wait_for_something_else_is_no_beat():
    """A rank that gives its memory back holds reads up once; the next launch would begin out of step."""
    beat = Beat()
    for end_ms in (100, 180, 260):
        beat.learn("all", 5 * MS, end_ms * MS)
        beat.learn("all", 9 * MS, end_ms * MS + 5 * MS)
    assert beat.hold_ns(1000 * MS) == 0
    beat.learn("all", 8 * MS, 337 * MS)
    assert beat.hold_ns(1000 * MS) == 0
    beat.learn("all", 8 * MS, 397 * MS)
    assert beat.hold_ns(1000 * MS) == 14 * MS


def test_a_pass_is_measured_against_its_own_sort():
    """One over all takes twice as long as one at an edge, without having waited."""
    beat = Beat()
    beat.learn("edge", 3 * MS, 103 * MS)
    beat.learn("all", 12 * MS, 112 * MS)
    assert beat.hold_ns(115 * MS) == 0
    beat.learn("all", 15 * MS, 215 * MS)
    assert beat.hold_ns(215 * MS) == 10 * MS


def test_reads_that_scatter_a_little_teach_nothing():
    """Of a device without such a habit, reads take 4 or 5.5 ms by chance."""
    beat = Beat()
    for number in range(60):
        beat.learn("all", (40 + 15 * (number % 2)) * MS // 10, number * 103 * MS)
    assert beat.hold_ns(7 * MS) == 0


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**12)), max_size=30), st.integers(0, 10**12))
def test_no_read_is_put_off_for_long(passes, now_ns):
    """Whatever it learnt: a window's edge is read within the next two beats."""
    beat = Beat()
    for latency_ns, end_ns in passes:
        beat.learn("all", latency_ns, end_ns)
    assert 0 <= beat.hold_ns(now_ns) <= 2.2 * BEAT_NS


@pytest.mark.parametrize("at_ms", range(0, 100, 5))
def test_the_long_work_is_let_pass(at_ms):
    """The moment that follows a short work lies within the long one, of every fifth."""
    beat = Beat()
    for began_ms in (1000, 2000):
        beat.learn("all", 4 * MS, (began_ms + 34) * MS)
        beat.learn("all", 9 * MS, (began_ms + 24) * MS)  # short ones end at 20, 40, ...
        beat.learn("all", 14 * MS, (began_ms + 69) * MS)  # the long one at 65
    begins_ms = (at_ms + beat.hold_ns(3000 * MS + at_ms * MS) / MS) % 100
    assert begins_ms % 20 <= 7
    assert not 60 <= begins_ms < 80
