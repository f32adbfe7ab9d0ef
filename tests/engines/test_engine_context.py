"""Context parallelism beyond what the parity matrix shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.engines.native.context import Context
from pytest_charllm.engines.native.mesh import Axis

RunRanks = Callable[[Path, Path, int], None]


def test_attention_over_parts_is_attention_over_all(run_ranks: RunRanks, tmp_path: Path) -> None:
    """A result or a gradient of queries, keys or values that a loss of five steps would hardly move."""
    run_ranks(Path(__file__).with_name("context_program.py"), tmp_path, 4)


@given(size=st.integers(1, 8), piece=st.integers(1, 4), ring=st.booleans())
def test_parts_are_a_partition_that_shares_the_work(size: int, piece: int, ring: bool) -> None:
    """A token that two ranks have, or none; in a ring, a rank that waits for the last piece of a causal sequence."""
    tokens = torch.arange(2 * size * piece)
    parts = [Context(Axis(size, rank), ring).part(tokens, dim=0) for rank in range(size)]
    assert torch.equal(torch.cat(parts).sort().values, tokens)
    assert all((part.diff() > 0).all() for part in parts), "attention to itself is causal"
    if ring:
        assert len({int((part + 1).sum()) for part in parts}) == 1, "query-key pairs"


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_part_is_of_the_dimension_asked_for(dim: int) -> None:
    """Tables by position have the tokens first, batches last."""
    x = torch.arange(8).expand(8, 8) if dim else torch.arange(8).unsqueeze(1).expand(8, 8)
    part = Context(Axis(2, 1), ring=True).part(x, dim)
    assert part.shape[dim] == 4
    assert part.unique().tolist() == [2, 3, 4, 5]
