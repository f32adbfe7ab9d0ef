"""Predicted traffic of ZeRO: what holds for any buckets; the two-rank tests hold it against DeepSpeed itself."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import Options, Recompute
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import parameter_list, parameters, shape
from pytest_charllm.scenario.traffic import Predicted, collectives
from pytest_charllm.scenario.traffic.gathering import gathers, persistent
from pytest_charllm.scenario.traffic.zero import reduce_buckets, reduced_at_once

TINY = shape("tiny-llama")
SIZES = {name: prod(size) for name, size in parameter_list(TINY)}
LARGE = {name for name, size in SIZES.items() if not persistent(size)}


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 2000))
def test_a_bucket_holds_what_fits(sizes: list[int], limit: int) -> None:
    """No gradient is lost or reduced twice; a bucket is over its limit only for one gradient that is larger than it,
    and it would not have taken the next one."""
    buckets = reduce_buckets(sizes, limit)
    assert [size for bucket in buckets for size in bucket] == sizes
    assert all(sum(bucket) <= limit or len(bucket) == 1 for bucket in buckets)
    assert all(sum(bucket) + after[0] > limit for bucket, after in pairwise(buckets))


@settings(deadline=None)
@given(st.integers(0, 4_000_000), st.integers(0, 4_000_000), st.sampled_from(Recompute))
def test_every_large_parameter_is_gathered_for_its_use(prefetch: int, live: int, recompute: Recompute) -> None:
    """Once at least, since nothing is whole at first; at most at each of its uses; the small ones never."""
    found = gathers(TINY, Options(prefetch_bucket=prefetch, live_parameters=live, recompute=recompute))
    times = Counter(name for names in found for name in names)
    assert set(times) == LARGE
    assert all(found)
    assert max(times.values()) <= (2 if recompute is Recompute.NONE else 3)


def test_what_is_kept_is_gathered_once_and_what_is_not_twice() -> None:
    """The two ends of `live_parameters`."""
    assert Counter(name for names in gathers(TINY, Options()) for name in names) == dict.fromkeys(LARGE, 1)
    alone = gathers(TINY, Options(live_parameters=0))
    assert Counter(name for names in alone for name in names) == dict.fromkeys(LARGE, 2)
    assert {len(names) for names in alone} == {1}


def test_nothing_is_fetched_ahead_without_a_bucket_for_it() -> None:
    """A look-ahead of 0 elements that fetches one parameter all the same."""
    assert {len(names) for names in gathers(TINY, Options(prefetch_bucket=0))} == {1}


@pytest.mark.parametrize(("suffix", "element"), [("", 2), (".fp32", 4)])
def test_stages_differ_in_what_they_reduce_and_when(suffix: str, element: int) -> None:
    """Stage 1 reduces once a step, 2 and 3 in every microbatch; all gather every parameter once where all are kept."""
    size = element * parameters(TINY)
    scalars = {"": (2, 5), ".fp32": (1, 4)}[suffix]

    def of(sharding: str) -> tuple[Predicted, ...]:
        return collectives(parse_key(f"tiny-llama.dp2+{sharding}.mb1.gb6{suffix}.eager.deepspeed"))

    gather = Predicted("all-gather", "dp", 1, size)
    norm = Predicted("all-reduce", "world", *scalars)
    assert of("zero1") == (gather, Predicted("all-reduce", "dp", 1, size), norm)
    assert of("zero2") == (gather, Predicted("all-reduce", "dp", 3, 3 * size), norm)
    small = [each for each in SIZES.values() if persistent(each)]
    large = element * sum(SIZES[name] for name in LARGE)
    assert of("zero3") == (
        Predicted("all-gather", "dp", 3 * 2 + len(small), 3 * large + element * sum(small)),
        Predicted("reduce-scatter", "dp", 3, 3 * size),
        Predicted("all-reduce", "world", 1, 8),
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 300))
def test_all_is_reduced_whatever_the_parts(sizes: list[int], limit: int, part: int) -> None:
    """A piece of a gradient that is cut between two ranks, lost or sent twice."""
    sent = reduced_at_once(sizes, limit, part)
    assert sum(sent) == sum(sizes)
    assert len(sent) >= len(reduce_buckets(reversed(sizes), limit))
    assert reduced_at_once(sizes, sum(sizes), part) == [sum(sizes)]


@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("tiny-llama.dp2+zero2.mb1.fp32.eager.reduce1.deepspeed", 40),
        ("tiny-llama.dp2+zero2.mb1.gb4.fp32.eager.reduce1.deepspeed", 80),
        ("tiny-llama.dp2+zero1.mb1.gb4.eager.no-overlap.reduce1000.deepspeed", 39),
    ],
)
def test_a_gradient_larger_than_a_bucket_is_cut_between_ranks(key: str, calls: int) -> None:
    """As two ranks of a CPU were seen to do: of 39 gradients the one on the border of the parts goes in two pieces. The
    strict check of collectives failed for such buckets."""
    (sent,) = (row for row in collectives(parse_key(key)) if (row.op, row.axis) == ("all-reduce", "dp"))
    assert sent.count == calls


@pytest.mark.parametrize(
    ("key", "first", "last"),
    [
        (".fp32", (2, 8), (3, 12)),
        ("", (1, 4), (2, 8)),
        ("+zero1.fp32", (2, 8), (3, 12)),
        ("+zero1", (4, 10), (5, 14)),
    ],
)
def test_stages_of_a_pipeline_differ(key: str, first: tuple[int, int], last: tuple[int, int]) -> None:
    """Each reduces and gathers its own parameters, and the last averages the loss that it tells. As four ranks of a CPU
    were seen to do."""
    sharding, _, precision = key.partition(".")
    suffix = f".{precision}" if precision else ""
    scenario = parse_key(f"tiny-llama.2L.pp2dp2{sharding}.mb2.gb8.seq32{suffix}.eager.deepspeed")
    element = 4 if precision else 2
    for rank, own, scalars in ((0, 1262080, first), (3, 1262336, last)):
        rows = {(row.op, row.axis): (row.count, row.bytes) for row in collectives(scenario, rank)}
        assert rows.pop(("all-reduce", "dp")) == (1, element * own)
        if key != ".fp32":
            assert rows.pop(("all-gather", "dp")) == (1, element * own)
        assert rows == {
            ("send", "pp"): (2, 2 * 2 * 32 * 256 * element),
            ("recv", "pp"): (2, 2 * 2 * 32 * 256 * element),
            ("all-reduce", "world"): scalars,
            ("broadcast", "world"): (1, 8),
        }


def test_what_is_not_predicted_says_so() -> None:
    """Bytes that follow the routing would be an exact number that is wrong."""
    with pytest.raises(BadInput, match="DeepSpeed's experts get what the router says"):
        collectives(parse_key("tiny-mixtral.dp2+ep2+zero1.mb1.eager.real-routing.deepspeed"))
