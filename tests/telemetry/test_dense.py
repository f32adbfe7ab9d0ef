from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.telemetry.dense import Span, Spans, announcement, parse

TIMES = st.integers(0, 2**63 - 1)


@given(TIMES, TIMES, st.booleans())
def test_what_is_announced_is_understood(a, b, last):
    """Two programs share this line: a digit lost on the way is an edge never looked at."""
    span = Span(min(a, b), max(a, b) + 1, last)
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
    assert [now for now in range(0, 100, 5) if spans.covers(now)] == [15, 20, 25, 90]


def test_a_last_span_stands_alone():
    """Once the end of a window is known, what was announced for the case that it comes late is not needed."""
    spans = Spans()
    spans.add(Span(10, 90), now_ns=5)
    spans.add(Span(20, 30, last=True), now_ns=20)
    assert [now for now in range(0, 100, 5) if spans.covers(now)] == [20, 25]
