"""The decoders and their initial weights."""

from __future__ import annotations

import pytest
import torch

from pytest_charllm.engines.native.attention import answering_backend, attend
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.scenario.models import models, parameter_list, shape

CPU = torch.device("cpu")


def decoder(name: str, seed: int = 1, seq: int = 32) -> Decoder:
    with torch.device("meta"):
        model = Decoder(shape(name, 2))
    initialize(model, seq, CPU, seed, CPU)
    return model


@pytest.mark.parametrize("name", models())
def test_parameters_are_those_on_paper(name: str) -> None:
    """Names and order decide the seeded weights, shapes decide everything else."""
    with torch.device("meta"):
        model = Decoder(shape(name))
    assert [(each, tuple(parameter.shape)) for each, parameter in model.named_parameters()] == list(
        parameter_list(shape(name))
    )


@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-llama"])
def test_attention_is_causal_and_positions_count(name: str) -> None:
    """A token that sees its successors, or a decoder that takes text for a bag of words."""
    model = decoder(name)
    tokens = torch.randint(2048, (1, 32), generator=torch.Generator().manual_seed(3))
    later = tokens.clone()
    later[0, 20:] = (later[0, 20:] + 1) % 2048
    swapped = tokens[:, [1, 0, *range(2, 32)]]
    with torch.no_grad():
        logits, changed, reordered = (model(each).view(1, 32, -1) for each in (tokens, later, swapped))
    torch.testing.assert_close(logits[:, :20], changed[:, :20])
    assert not torch.allclose(logits[:, 20:], changed[:, 20:], atol=1e-4)
    assert not torch.allclose(logits[:, 2:], reordered[:, 2:], atol=1e-6)


def test_rope_sees_distances_only() -> None:
    """Rotary attention scores are the same wherever in the sequence a pair of tokens stands."""
    from pytest_charllm.engines.native.model import _rotate

    model = decoder("tiny-llama")
    assert model.rotary is not None
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 1, 1, 64, generator=generator).expand(1, 32, 1, 64) for _ in range(2))
    scores = _rotate(q, model.rotary)[0, :, 0] @ _rotate(k, model.rotary)[0, :, 0].T
    torch.testing.assert_close(scores.diagonal(3), scores[0, 3].expand(29))
    assert not torch.allclose(scores[0, 3], scores[0, 9])


def test_grouped_heads_share_keys() -> None:
    """Each key head serves a group of neighbouring query heads."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 8, heads, 16, generator=generator) for heads in (4, 2, 2))
    whole = attend(q, k.repeat_interleave(2, dim=2), v.repeat_interleave(2, dim=2))
    torch.testing.assert_close(attend(q, k, v), whole)


def test_gpt_head_is_the_embedding() -> None:
    """Tied weights must stay tied through the meta device, and collect both gradients."""
    model = decoder("tiny-gpt")
    assert model.head is None
    model(torch.zeros(1, 4, dtype=torch.long)).logsumexp(-1).sum().backward()
    gradient = model.embed.weight.grad
    assert gradient is not None
    assert (gradient.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("name", ["tiny-gpt", "tiny-llama"])
def test_weights_follow_the_seed(name: str) -> None:
    """Parity compares runs that must start from the same point."""
    first, again, other = decoder(name), decoder(name), decoder(name, seed=2)
    for (key, weight), same, different in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, same)
        if weight.ndim > 1:
            assert not torch.equal(weight, different)
            assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        else:
            assert weight.unique().tolist() == [0.0 if key.endswith("bias") else 1.0]


def test_names_the_kernel_that_answers() -> None:
    """The report must name what ran, not what was wished for."""
    llama = shape("tiny-llama")
    assert answering_backend(llama, 2, 32, torch.float32, CPU) == "flash_for_cpu"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert answering_backend(llama, 2, 32, torch.float32, CPU) == "math"
