"""Cross entropy a chunk of the tokens at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_charllm.engines.native.chunked_loss import chunk_loss, chunked_cross_entropy
from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.scenario.chunks import MOST_TOKENS, chunk_sizes

VOCAB, WIDTH = 97, 16


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operator returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(out) if isinstance(each, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, WIDTH, generator=generator, requires_grad=True)
    head = torch.randn(VOCAB, WIDTH, generator=generator, requires_grad=True)
    return x, head, torch.randint(VOCAB, (1, tokens), generator=generator)


@settings(deadline=None, max_examples=20)
@given(tokens=st.integers(1, 40), weight=st.floats(0.1, 3.0))
def test_chunks_give_the_loss_and_gradients_of_the_whole(tokens: int, weight: float) -> None:
    """A chunk of another size than the rest that counts for as much, or gradients without the loss's own weight."""
    x, head, targets = inputs(tokens)
    loss = chunked_cross_entropy(x, head, targets, Region(Axis()), chunk_loss) * weight
    expected = F.cross_entropy(F.linear(x, head), targets.flatten()) * weight
    torch.testing.assert_close(loss, expected)
    wanted = torch.autograd.grad(expected, (x, head))
    torch.testing.assert_close(torch.autograd.grad(loss, (x, head)), wanted)


def test_weight_of_a_loss_is_exact_in_bf16() -> None:
    """A third, as with three microbatches, is 0.2 % too much in bf16: a bias that no rounding of single numbers has."""
    x, head, targets = inputs(64)
    x, head = (each.detach().bfloat16().requires_grad_() for each in (x, head))
    loss = chunked_cross_entropy(x, head, targets, Region(Axis()), chunk_loss)
    whole = torch.autograd.grad(loss, (x, head), retain_graph=True)
    thirds = torch.autograd.grad(loss * (1 / 3), (x, head))
    for third, full in zip(thirds, whole, strict=True):
        assert (3 * third.double().norm() / full.double().norm()).item() == pytest.approx(1, abs=5e-4)


def test_logits_of_all_tokens_never_exist() -> None:
    """The only reason to work in chunks."""
    x, head, targets = inputs(64)
    with Largest() as largest:
        chunked_cross_entropy(x, head, targets, Region(Axis()), chunk_loss).backward()
    assert largest.elements == 32 * VOCAB


def test_a_frozen_head_gets_no_gradient() -> None:
    """Nor is one computed: with adapters it would be a third of the work here."""
    x, head, targets = inputs(8)
    chunked_cross_entropy(x, head.detach(), targets, Region(Axis()), chunk_loss).backward()
    assert head.grad is None
    assert x.grad is not None


@given(tokens=st.integers(1, 10 * MOST_TOKENS))
def test_chunks_are_all_tokens_in_equal_parts(tokens: int) -> None:
    """Traffic and memory are computed from these sizes."""
    sizes = chunk_sizes(tokens)
    assert sum(sizes) == tokens
    assert len(sizes) > 1 or tokens == 1
    assert max(sizes) <= MOST_TOKENS
    assert len(set(sizes[:-1])) <= 1
    assert 0 < sizes[-1] <= sizes[0]
