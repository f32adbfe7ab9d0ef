"""Training's calls on each axis against curves of collectives alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.traffic import axis_traffic, call_s, curves_of
from pytest_charllm.records import Measurement, Value
from pytest_charllm.scenario.key import parse_key

KIB, MIB = 1 << 10, 1 << 20
START_S, BYTES_PER_S = 20e-6, 100e9


def link() -> dict[int, float]:
    """A call takes a start, then a time for each byte."""
    return {size: START_S + size / BYTES_PER_S for size in (KIB, 4 * KIB, 16 * KIB, MIB, 64 * MIB)}


@given(size=st.integers(KIB, 64 * MIB))
def test_between_sizes_a_call_takes_a_start_and_a_time_a_byte(size: int) -> None:
    """Interpolated bandwidths would say that small messages are faster than any that was measured."""
    assert call_s(link(), size) == pytest.approx(START_S + size / BYTES_PER_S)


def test_beyond_the_sizes_nothing_is_invented() -> None:
    """A straight line drawn on from the smallest sizes reaches 0 s, and from the largest any bandwidth."""
    assert call_s(link(), 4) == link()[KIB]
    assert call_s(link(), 640 * MIB) == pytest.approx(10 * link()[64 * MIB])


def test_a_pipeline_of_split_ranks_sends_in_smaller_pieces() -> None:
    """The study's finding: the same activations, sent by tp ranks of a stage in tp pieces, use less of a link."""
    curves = {("p2p", 2): link()}
    shares, sizes = {}, {}
    for key in ("tiny-llama.pp2.mb4", "tiny-llama.tp2pp2.mb4"):
        (send,) = [each for each in axis_traffic(parse_key(key), curves) if each.op == "send"]
        assert send.seconds is not None
        assert send.gb_per_s == pytest.approx(send.mean_bytes * send.calls / send.seconds / 1e9)
        shares[key], sizes[key] = send.share, send.mean_bytes
    alone, split = shares
    assert sizes[alone] == 2 * sizes[split]
    assert shares[alone] > shares[split]


@pytest.mark.parametrize(
    ("key", "axis", "op", "ranks"),
    [
        ("tiny-llama.tp2dp4.mb1", "dp", "all-reduce", 4),
        ("tiny-llama.tp2dp4.mb1", "tp", "all-gather", 2),
        ("tiny-llama.dp8+hsdp2.mb1", "dp", "all-gather", 4),
        ("tiny-llama.dp8+hsdp2.mb1", "dp", "all-reduce", 2),
        ("tiny-llama.cp2dp4+fsdp.mb1", "dp", "reduce-scatter", 8),
        ("tiny-llama.tp2dp4.mb1", "world", "all-reduce", 8),
    ],
)
def test_a_call_is_held_against_a_group_of_its_own_size(key: str, axis: str, op: str, ranks: int) -> None:
    """Two ranks of a node share one link, eight share the switch."""
    found = [each for each in axis_traffic(parse_key(key), {}) if (each.axis, each.op) == (axis, op)]
    assert [each.ranks for each in found] == [ranks]


def test_without_a_curve_it_says_so() -> None:
    """Another group's curve in its place would be a number about other links."""
    (row,) = axis_traffic(parse_key("tiny-llama.dp4.mb1"), {("all-reduce", 2): link()})
    assert (row.gb_per_s, row.share, row.seconds) == (None, None, None)
    assert row.reason == "no curve of all-reduce between 4 ranks"


def test_curves_are_medians_of_their_launches(make: SimpleNamespace) -> None:
    """One launch beside a backup job would bend the curve."""
    scenario = parse_key("p2p.dp2.upto4kib")

    whole = measure(make.launch(), None, make.machine())

    def launch(latency_s: float) -> Measurement:
        values = {"latency_1kib": Value(value=latency_s, unit="s"), "latency_4kib": Value(value=None, unit="s")}
        return replace(whole, values=values)

    found = curves_of({scenario: [launch(2e-5), launch(9e-5), launch(3e-5)], parse_key("tiny-llama.mb1"): []})
    assert found == {("p2p", 2): {KIB: 3e-5}}
