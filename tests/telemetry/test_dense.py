from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.telemetry.dense import Kind, Span, Spans, announcement, parse

TIMES = st.integers(0, 2**63 - 1)


@given(TIMES, TIMES, st.sampled_from(Kind))
def test_what_is_announced_is_understood(a, b, kind):
    """Two programs share this line: a digit lost on the way is an edge never looked at."""
    span = Span(min(a, b), max(a, b) + 1, kind)
    assert parse(announcement(span).rstrip(b"\n")) == span


@given(st.binary())
def test_any_other_line_is_nothing(line):
    """What comes on stdin is not always ours; a line that cannot be read must not end the sampling."""
    span = parse(line)
    assert span is None or parse(announcement(span)) == span


def test_spans_end_by_themselves():
    """An announcer that dies must not leave the dear reads on for ever."""
    spans = Spans()
    spans.add(Span(10, 20), now_ns=5)
    spans.add(Span(15, 30), now_ns=5)
    spans.add(Span(90, 95), now_ns=25)
    assert [now for now in range(0, 100, 5) if spans.at(now) is Kind.DENSE] == [15, 20, 25, 90]


def test_a_last_span_stands_alone():
    """Once the end of a window is known, what was announced for the case that it comes late is not needed."""
    spans = Spans()
    spans.add(Span(10, 90), now_ns=5)
    spans.add(Span(20, 30, Kind.LAST), now_ns=20)
    assert [now for now in range(0, 100, 5) if spans.at(now) is Kind.DENSE] == [20, 25]


def test_a_rest_ends_by_itself():
    """An announcer that dies must not leave the sampler half asleep."""
    spans = Spans()
    assert not spans.add(Span(10, 20, Kind.REST), now_ns=5)
    assert [now for now in range(0, 30, 5) if spans.at(now) is Kind.REST] == [10, 15]


@pytest.mark.parametrize("kind", [Kind.NEAR, Kind.DENSE, Kind.LAST])
def test_a_rest_ends_for_good_when_something_is_to_be_judged(kind):
    """One that came back after a close look would thin out the window. One that has not begun is taken back too."""
    for now_ns in (5, 12):
        spans = Spans()
        spans.add(Span(10, 90, Kind.REST), now_ns=1)
        assert spans.add(Span(15, 30, kind), now_ns=now_ns)
        assert not any(spans.at(now) is Kind.REST for now in range(0, 100, 5))
        assert not spans.add(Span(40, 50, kind), now_ns=now_ns)


def test_the_latest_rest_counts():
    """Each phase before the window announces one anew: they must not add up."""
    spans = Spans()
    spans.add(Span(10, 90, Kind.REST), now_ns=1)
    spans.add(Span(20, 40, Kind.REST), now_ns=2)
    assert [now for now in range(0, 100, 10) if spans.at(now) is Kind.REST] == [20, 30]


@pytest.mark.parametrize("kind", [Kind.DENSE, Kind.LAST])
def test_a_window_is_near_until_it_is_there(kind):
    """Between its edges slow quantities are read once a second: that it was near must be forgotten by then."""
    spans = Spans()
    spans.add(Span(10, 90, Kind.NEAR), now_ns=10)
    assert [now for now in range(0, 100, 30) if spans.at(now) is Kind.NEAR] == [30, 60]
    spans.add(Span(20, 30, kind), now_ns=20)
    assert not any(spans.at(now) is Kind.NEAR for now in range(0, 100, 5))


def test_a_close_look_wants_a_pass_as_it_begins():
    """At an edge that is there already the next tick is too late; one pass as well as another would do within it."""
    spans = Spans()
    assert spans.add(Span(10, 20), now_ns=10)
    assert not spans.add(Span(12, 22), now_ns=12)
    assert not spans.add(Span(90, 95), now_ns=30)
    assert not spans.add(Span(50, 90, Kind.NEAR), now_ns=50)
