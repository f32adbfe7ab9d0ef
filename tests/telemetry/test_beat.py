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
        beat.learn(True, latency_ns, now_ns + latency_ns)
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


def taught(*waits_ms: tuple[int, float]) -> Beat:
    """One that saw a pass of the usual length, then such as waited so long, until then."""
    beat = Beat()
    beat.learn(True, USUAL_MS * MS, 0)
    for waited_ms, until_ms in waits_ms:
        beat.learn(True, (USUAL_MS + waited_ms) * MS, round((until_ms + USUAL_MS) * MS))
    return beat


def hold_ms(beat: Beat, at_ms: float) -> float:
    return beat.hold_ns(round(at_ms * MS)) / MS


def test_a_pass_is_put_off_to_just_after_the_work_of_a_beat():
    """It may begin for 7 ms after that, and 2 ms after it if it was put off."""
    beat = taught((3, 105), (4, 1005))
    assert [hold_ms(beat, 2000 + at_ms) for at_ms in (4, 5, 12, 13, 24)] == [3, 0, 0, 14, 3]


def test_the_work_of_every_fifth_beat_is_let_pass():
    """What follows the short work before lies within the long one."""
    beat = taught((3, 100), (4, 1000), (9, 1090), (14, 2090))
    begins_ms = [(at_ms + hold_ms(beat, 3000 + at_ms)) % 100 for at_ms in range(100)]
    assert all(begin_ms % 20 <= 7 for begin_ms in begins_ms)
    assert not any(80 <= begin_ms < 100 for begin_ms in begins_ms)
    assert {begin_ms // 20 for begin_ms in begins_ms} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("ends_ms", "let_pass"), [(62, 2), (63, 2), (64, 3), (78, 3), (80, 3), (83, 3), (84, 4), (99, 4), (1, 4), (4, 0)]
)
def test_the_long_work_takes_one_beat_wherever_it_ends(ends_ms, let_pass):
    """A few milliseconds into the next beat, it was still the one before that it took."""
    beat = taught((3, 120), (4, 1040), (9, 1000 + ends_ms), (14, 2000 + ends_ms))
    beats = {(at_ms + hold_ms(beat, 3000 + at_ms)) % 100 // 20 for at_ms in range(100)}
    assert beats == {0, 1, 2, 3, 4} - {let_pass}
    assert all(hold_ms(beat, 3000 + 20 * each + 1) == 0 for each in beats)


def test_the_last_of_the_long_work_is_none_of_every_beat():
    """Whoever met only the last 3 ms of it waited for the same end; another beat would be kept clear of in vain."""
    for waits_ms in (((9, 165), (3, 1065)), ((3, 165), (9, 1065))):
        beat = taught(*waits_ms)
        assert hold_ms(beat, 2080) == 0  # 15 ms after it
        assert hold_ms(beat, 2050) == 17
        assert hold_ms(beat, 2030) == 0


def test_one_wait_for_something_else_is_no_beat():
    """A rank that gives its memory back holds reads up once; the next launch would begin out of step."""
    beat = taught((4, 100), (4, 180), (4, 260), (3, 332))
    assert hold_ms(beat, 1000) == 0
    beat.learn(True, 8 * MS, 397 * MS)
    assert hold_ms(beat, 1000) == 14
    beat = taught((9, 165), (9, 265), (9, 330))
    assert hold_ms(beat, 1050) == 17
    beat.learn(True, 14 * MS, 435 * MS)
    assert hold_ms(beat, 1050) == 0


def test_ends_agree_across_the_edge_of_a_beat():
    """19.5 and 0.5 ms of 20 are a millisecond apart, and the later of two counts."""
    assert hold_ms(taught((4, 119.5), (4, 200.5), (4, 1010)), 2007.5) == 0
    assert hold_ms(taught((4, 100.5), (4, 219.5), (4, 1010)), 2019.5) == 0


def test_of_ends_that_drift_the_latest_counts():
    """0, 2 and 4 ms into a beat: each agrees with the one before."""
    assert hold_ms(taught((4, 100), (4, 182), (4, 264)), 2003) == 3
    assert hold_ms(taught((4, 100), (4, 185)), 2012) == 0


def test_what_is_long_past_counts_no_more():
    """Two ends that agreed would else outlive a change of the card's habit."""
    assert hold_ms(taught((4, 100), (4, 200), (4, 310), (4, 414), (4, 517)), 2017) == 0
    assert hold_ms(taught((9, 110), (9, 210), (9, 330), (9, 450), (9, 570)), 1060) == 12
    beat = taught((3, 105))
    for number in range(25):  # a rest is over, and under load all reads take longer
        beat.learn(True, 8 * MS, (number * 1000 + 5 + (USUAL_MS if number < 19 else 15)) * MS)
    assert (hold_ms(beat, 30005), hold_ms(beat, 30015)) == (0, 12)


def test_a_wait_of_almost_a_beats_work_is_one_for_that():
    """It takes 5 ms, and a read may come just as it begins."""
    assert hold_ms(taught((5.5, 105)), 2020) == 7


def test_a_pass_is_measured_against_its_own_sort():
    """One over all takes twice as long as one at an edge, without having waited."""
    beat = Beat()
    beat.learn(False, 3 * MS, 103 * MS)
    beat.learn(True, 12 * MS, 112 * MS)
    assert beat.hold_ns(115 * MS) == 0
    beat.learn(True, 15 * MS, 215 * MS)
    assert beat.hold_ns(215 * MS) == 10 * MS


def test_reads_that_scatter_a_little_teach_nothing():
    """Of a device without such a habit, reads take 4 or 5.5 ms by chance."""
    beat = Beat()
    for number in range(60):
        beat.learn(True, (40 + 15 * (number % 2)) * MS // 10, number * 103 * MS)
    assert beat.hold_ns(7 * MS) == 0


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 10**8), st.integers(0, 10**12)), max_size=30),
    st.integers(0, 10**12),
)
def test_no_read_is_put_off_for_long(passes, now_ns):
    """Whatever it learnt: coverage counts on at most 35 ms (`measure.series.IN_TIME`)."""
    beat = Beat()
    for over_all, latency_ns, end_ns in passes:
        beat.learn(over_all, latency_ns, end_ns)
    assert 0 <= beat.hold_ns(now_ns) <= 35 * MS
