"""Counting of FLOPs and collectives beyond what the two-rank runs show."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_charllm.engines.native.counting import CollectiveCounter, counting_flops
from pytest_charllm.engines.native.functional import all_reduce
from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Collective


def test_fused_attention_counts_the_full_square() -> None:
    """torch's own table does not know the CPU kernel: attention would count nothing."""
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    k, v = (torch.randn(2, 2, 16, 8, requires_grad=True) for _ in range(2))
    product = 2 * 2 * 4 * 16 * 16 * 8
    with counting_flops() as flops:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert flops() == 2 * product
        out.sum().backward()
    assert flops() == 7 * product


@pytest.fixture
def four_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def test_bytes_are_those_of_the_full_tensor(four_ranks: None) -> None:
    """A shard's bytes instead of the whole depends on the number of ranks; a norm is no traffic of an axis."""
    shard, whole = torch.zeros(3), torch.zeros(12)
    axis = dist.new_group()
    with CollectiveCounter({axis.group_name: "dp"}) as counter:
        dist.all_gather_into_tensor(whole, shard, group=axis)
        dist.reduce_scatter_tensor(shard, whole, group=axis)
        dist.all_reduce(whole.bfloat16(), group=axis)
        dist.all_reduce(torch.zeros(()))
        dist.barrier()
    assert counter.collectives() == (
        Collective(op="all-gather", axis="dp", count=1, bytes=48),
        Collective(op="all-reduce", axis="dp", count=1, bytes=24),
        Collective(op="reduce-scatter", axis="dp", count=1, bytes=48),
        Collective(op="all-reduce", axis="world", count=1, bytes=4),
    )


def test_a_message_of_one_element_belongs_to_its_axis(four_ranks: None) -> None:
    """The largest logit of a single token is tp's: counted as the world's, a right step failed its check."""
    axis = dist.new_group()
    with CollectiveCounter({axis.group_name: "tp"}) as counter:
        all_reduce(torch.zeros(1), axis.group_name, "max")
    assert counter.collectives() == (Collective(op="all-reduce", axis="tp", count=1, bytes=4),)


def test_an_unknown_collective_is_no_silence(four_ranks: None) -> None:
    """Traffic that nobody counts would pass the strict check."""
    with pytest.raises(HarnessError, match="c10d::gather_"), CollectiveCounter({}):
        dist.gather(torch.zeros(2), [torch.zeros(2) for _ in range(4)])
