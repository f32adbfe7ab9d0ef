"""Predicted collectives: the reducer's own buckets, and closed forms for FSDP2."""

from __future__ import annotations

import warnings

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import parameters, parse_key, shape
from pytest_charllm.scenario.models import ModelShape, parameter_list
from pytest_charllm.scenario.traffic import MIB, Predicted, collectives, ddp_buckets


def test_ddp_reduces_every_gradient_once_whatever_the_accumulation() -> None:
    """`no_sync` on all but the last microbatch: without it the traffic of a step grows with the accumulation."""
    once, often = collectives(parse_key("tiny-llama.dp2.mb1")), collectives(parse_key("tiny-llama.dp2.mb1.gb16"))
    assert once == often
    assert once == (
        Predicted("all-reduce", "dp", 2, 4 * parameters(shape("tiny-llama"))),
    )


@settings(deadline=None)
@given(first=st.integers(1, 64), cap=st.integers(1, 64), model=st.sampled_from(["tiny-gpt", "tiny-llama"]))
def test_buckets_are_greedy(first: int, cap: int, model: str) -> None:
    """Each bucket but the last reaches its limit and would not without its last gradient; no byte is lost."""
    it = shape(model)
    first_bytes, cap_bytes = first * MIB // 8, cap * MIB // 8
    buckets = ddp_buckets(it, cap_bytes, first_bytes)
    assert sum(buckets) == 4 * parameters(it)
    limits = [first_bytes] + [cap_bytes] * len(buckets)
    largest = max(4 * it.vocab * it.hidden, 4 * it.hidden * it.ffn)
    assert all(limit <= size < limit + largest for size, limit in zip(buckets[:-1], limits, strict=False))


@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-llama"])
def test_torch_reducer_fills_the_same_buckets(model: str) -> None:
    """A change of the reducer's algorithm changes the count of all-reduces on every machine."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    it = msgspec.structs.replace(shape(model), layers=2, vocab=512)
    layers = _linear_chain(torch, it)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel = torch.nn.parallel.DistributedDataParallel(layers, broadcast_buffers=False)
            for _ in range(3):
                parallel(torch.zeros(1)).backward()
        found = parallel._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        del parallel
    finally:
        dist.destroy_process_group()
    assert [int(size) for size in found.split(",")] == ddp_buckets(it, 25 * MIB, MIB)


def _linear_chain(torch, it: ModelShape):
    """A module that uses our parameters one after another, in the order of `parameter_list`."""

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = torch.nn.ParameterList([torch.zeros(size) for _, size in parameter_list(it)])

        def forward(self, x):
            for parameter in self.used:
                x = x * parameter.sum()
            return x.sum()

    return Chain()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("suffix", "element"), [("", 2), (".fp32", 4)])
def test_fsdp_gathers_twice_and_reduces_once_a_microbatch(ranks: int, suffix: str, element: int) -> None:
    """Forgotten: the second gather of a resharded block, that the root is not resharded, that each microbatch gathers
    again, that rows are padded to the ranks."""
    it = shape("tiny-llama")
    if ranks == 3:
        padded = lambda rows, columns: 3 * -(-rows // 3) * columns  # noqa: E731
        block = (
            2 * padded(256, 256) + 2 * padded(128, 256) + 2 * padded(704, 256) + padded(256, 704) + 2 * padded(256, 1)
        )
        root = 2 * padded(2048, 256) + padded(256, 1)
    else:
        block = (parameters(it) - 2 * 2048 * 256 - 256) // it.layers
        root = 2 * 2048 * 256 + 256
    gradients = 4 * (it.layers * block + root)
    gathers = element * (2 * it.layers * block + root)
    scenario = parse_key(f"tiny-llama.dp{ranks}+fsdp.mb1.gb{3 * ranks}{suffix}")
    assert collectives(scenario) == (
        Predicted("all-gather", "dp", 3 * (2 * it.layers + 1), 3 * gathers),
        Predicted("reduce-scatter", "dp", 3 * (it.layers + 1), 3 * gradients),
        Predicted("all-reduce", "world", 1, 4),
    )


def test_a_single_rank_talks_to_nobody() -> None:
    """An all-reduce predicted for one rank would fail the strict check on every one-GPU machine."""
    assert collectives(parse_key("llama3-1b.mb2")) == ()


@pytest.mark.parametrize("layout", ["tp2", "pp2", "cp2", "tp2dp2", "dp8+hsdp2", "dp8+zero1"])
def test_what_is_not_predicted_says_so(layout: str) -> None:
    """A prediction that leaves an axis out would be an exact number that is wrong."""
    with pytest.raises(BadInput, match=f"traffic of llama3-8b.{layout.replace('+', '.')}.mb1 is not predicted"):
        collectives(parse_key(f"llama3-8b.{layout}.mb1"))
