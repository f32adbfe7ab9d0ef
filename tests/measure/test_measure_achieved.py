"""What calls on each axis achieved, from a rank's traced step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.measure.achieved import Achieved, achieved
from pytest_charllm.records import Pass, RankReport, from_json, to_json
from pytest_charllm.records.breakdown import AxisTime
from pytest_charllm.records.curve import LATENCY_BOUND
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.traffic import collectives

TWO_AXES = "tiny-llama.tp2dp4.mb1"
US = 1000


def time(op: str = "all-gather", axis: str | None = "tp", **changes: Any) -> AxisTime:
    plain = {"calls": 18, "bytes": 18 << 20, "busy_ns": 900 * US, "moving_ns": 450 * US}
    return AxisTime(axis=axis, op=op, **(plain | changes))


def as_predicted(key: str, **changes: Any) -> tuple[AxisTime, ...]:
    """Every call of rank 0, each taking 10 us."""
    return tuple(
        time(each.op, each.axis, calls=each.count, bytes=each.bytes, **({"moving_ns": 10 * US * each.count} | changes))
        for each in collectives(parse_key(key))
    )


def told(make: SimpleNamespace, *times: AxisTime, key: str = TWO_AXES, curves: Any = None) -> tuple[Achieved, ...]:
    report = make.report(0, 8, pass_=Pass.TRACED, axis_times=times)
    return achieved(parse_key(key), curves or {}, report)


def only(make: SimpleNamespace, row: AxisTime, key: str = TWO_AXES, curves: Any = None) -> Achieved:
    """What is told of these calls among all that is predicted."""
    return next(each for each in told(make, row, key=key, curves=curves) if (each.axis, each.op) == (row.axis, row.op))


def test_the_rate_is_that_of_moving_over_the_busiest_link(make: SimpleNamespace) -> None:
    """18 MiB in 450 us over two ranks, of which half crosses the link; a rate over the wait is the slow rank's. Against
    the curve of that group's size at messages of 1 MiB, which take 20 us alone."""
    curves = {("all-gather", 2): {1 << 20: 20e-6}, ("all-gather", 8): {1 << 20: 1.0}}
    row = only(make, time(), curves=curves)
    assert (row.calls, row.mean_bytes, row.busy_s, row.moving_s) == (18, 1 << 20, 900e-6, 450e-6)
    assert row.gb_per_s == pytest.approx((18 << 20) / 2 / 450e-6 / 1e9)
    assert row.of_curve == pytest.approx(18 * 20e-6 / 450e-6)


def test_sends_count_once(make: SimpleNamespace) -> None:
    """A link between two carries all of a message, and a send is held against a ring of them."""
    key = "tiny-llama.pp2.mb1"
    row = only(make, time("send", "pp"), key=key, curves={("p2p", 2): {1 << 20: 20e-6}})
    assert row.gb_per_s == pytest.approx((18 << 20) / 450e-6 / 1e9)
    assert row.of_curve == pytest.approx(18 * 20e-6 / 450e-6)


@given(moving_us=st.integers(1, 10_000), calls=st.integers(1, 500), size=st.integers(1, 1 << 28))
def test_against_the_curve_is_time_against_time(moving_us: int, calls: int, size: int) -> None:
    """Whatever the factor of the operation: calls as fast as alone are 100 % of the curve. On two H200s a sum of 4
    bytes was 786 % of it, since a curve has the start of a call in it, and a kernel has not."""
    report = SimpleNamespace(
        rank=0, axis_times=(time("all-reduce", "dp", calls=calls, bytes=calls * size, moving_ns=moving_us * US),)
    )
    alone_s = moving_us * 1e-6 / calls
    rows = achieved(parse_key(TWO_AXES), {("all-reduce", 4): {size: alone_s}}, report)  # type: ignore[arg-type]
    row = next(each for each in rows if (each.axis, each.op) == ("dp", "all-reduce"))
    assert row.of_curve == (pytest.approx(1.0) if size > LATENCY_BOUND else None)


def test_calls_as_predicted_need_no_word(make: SimpleNamespace) -> None:
    """A note on every line hides the one that matters."""
    rows = told(make, *as_predicted(TWO_AXES))
    assert len(rows) == len(collectives(parse_key(TWO_AXES)))
    assert {each.reason for each in rows} == {""}


def test_what_differs_from_the_prediction_is_said(make: SimpleNamespace) -> None:
    """A layer that gathers twice is a bug that a rate looks fine with; so is one that is not called any more."""
    whole = as_predicted(TWO_AXES)
    gathers = next(each for each in whole if (each.axis, each.op) == ("tp", "all-gather"))
    rest = [each for each in whole if each is not gathers]

    def reasons(*times: AxisTime) -> list[str]:
        return [each.reason for each in told(make, *times) if each.reason]

    twice = time(calls=2 * gathers.calls, bytes=2 * (gathers.bytes or 0))
    assert reasons(*rest, twice) == [f"{gathers.calls} predicted"]
    half = time(calls=gathers.calls, bytes=(gathers.bytes or 0) // 2)
    assert reasons(*rest, half) == [f"{gathers.bytes:,} bytes predicted"]
    assert reasons(*rest) == [f"{gathers.calls} predicted"]
    assert reasons(*whole, time("broadcast", "dp")) == ["none predicted"]


def test_buckets_of_compiled_blocks_may_differ(make: SimpleNamespace) -> None:
    """On two H200s DDP made 50 where 66 are predicted of uncompiled blocks, by the compiler's order: the same bytes."""
    key = "llama3-1b.dp2.mb1"
    (whole,) = collectives(parse_key(key))
    row = only(make, time("all-reduce", "dp", calls=50, bytes=whole.bytes), key=key)
    assert (row.calls, whole.count, row.reason) == (50, 66, "")


def test_what_is_missing_is_said_and_no_number(make: SimpleNamespace) -> None:
    """A rate with the waiting in it must not pass for one of the link."""
    waiting = only(make, time(moving_ns=None))
    assert waiting.gb_per_s == pytest.approx((18 << 20) / 2 / 900e-6 / 1e9)
    assert waiting.reason.endswith("with waiting")
    unseen = only(make, time(busy_ns=None, moving_ns=None))
    assert (unseen.busy_s, unseen.moving_s, unseen.gb_per_s, unseen.of_curve) == (None, None, None, None)
    assert unseen.reason.endswith("kernels not seen")


def test_what_belongs_to_no_axis_comes_last(make: SimpleNamespace) -> None:
    """Never dropped: it may be all there is, in asynchronous tensor parallelism."""
    copies = time("Memcpy PtoP", None, calls=12, bytes=None, moving_ns=None)
    foreign = time("all-reduce", None, calls=2, bytes=64, moving_ns=None)
    rows = told(make, copies, *as_predicted(TWO_AXES), foreign)
    assert rows[-2:] == (
        Achieved(None, "Memcpy PtoP", 12, busy_s=900e-6, reason="kernels of no call"),
        Achieved(None, "all-reduce", 2, mean_bytes=32, busy_s=900e-6, reason="a group of no axis"),
    )


def test_a_report_without_times_tells_nothing(make: SimpleNamespace) -> None:
    """Records made before have none, and still read."""
    assert told(make) == ()
    old = to_json(make.report()).replace(b'"axis_times":[],', b"")
    assert b"axis_times" not in old
    assert from_json(old, RankReport, "here").axis_times == ()
