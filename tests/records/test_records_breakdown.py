"""Exposed communication from intervals: against a count of instants, and on traces as two public regressions left them.

The traces are synthetic: streams that wait for each other need a GPU.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records.breakdown import Interval, exposed, overlap

BACKWARD, REDUCE = 2.0, 1.5
"""Of one bucket, in ms."""

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda at: Interval(at[0], at[0] + at[1])), max_size=8
)


@given(intervals, intervals)
def test_exposed_is_the_count_of_instants(communication: list[Interval], computation: list[Interval]) -> None:
    """Nested, touching, empty and repeated intervals, each of which a sum over pairs counts twice or not at all."""

    def at(tick: int, among: list[Interval]) -> bool:
        return any(begin <= tick < end for begin, end in among)

    talking = [tick for tick in range(60) if at(tick, communication)]
    alone = [tick for tick in talking if not at(tick, computation)]
    assert exposed(communication, computation) == len(alone)
    share = overlap(communication, computation)
    assert share == (pytest.approx(1 - len(alone) / len(talking)) if talking else None)


def trace(buckets: int, serialized: bool) -> tuple[list[Interval], list[Interval]]:
    """(communication, computation) of a backward pass: each bucket is reduced once its gradients are there. Serialized,
    the next part of the pass waits for it."""
    communication, computation = [], []
    now, free = 0.0, 0.0
    for _ in range(buckets):
        computation.append(Interval(now, now + BACKWARD))
        now += BACKWARD
        begin = max(now, free)
        free = begin + REDUCE
        communication.append(Interval(begin, free))
        if serialized:
            now = free
    return communication, computation


def test_a_backward_pass_that_waits_for_its_buckets_overlaps_nothing() -> None:
    """DeepSpeed#8364 (the backward pass waits for the previous bucket) and the 0.0 % of ZeRO 2 that alpamayo-recipes#24
    saw: every reduction is exposed, where a sound pass exposes the last one alone."""
    assert overlap(*trace(8, serialized=True)) == 0.0
    assert exposed(*trace(8, serialized=True)) == pytest.approx(8 * REDUCE)
    assert exposed(*trace(8, serialized=False)) == pytest.approx(REDUCE)
    assert overlap(*trace(8, serialized=False)) == pytest.approx(7 / 8)


def test_an_interval_that_runs_backwards_is_refused() -> None:
    """A trace whose clocks do not fit together would give a negative time."""
    with pytest.raises(ValueError, match=r"ends at 1.*before it begins at 2"):
        exposed([Interval(2, 1)], [])
