"""Model shapes, their parameters by name and number."""

from __future__ import annotations

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import Options, Scenario, Training
from pytest_charllm.scenario.models import (
    Family,
    block_parameter_list,
    models,
    parameter_list,
    parameters,
    sequence,
    shape,
    tokens_per_step,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("llama3-1b", 1_104_218_112),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("tiny-llama", 4_000_000),
        ("tiny-gpt", 3_716_608),
    ],
)
def test_parameter_counts_are_the_published_ones(model: str, count: int) -> None:
    """A forgotten norm, an untied head or a full-width k projection changes the count by less than one would notice."""
    assert parameters(shape(model)) == count


def test_gpt3_count_by_the_closed_form() -> None:
    """12 L h^2 with all biases, norms, positions and one (tied) vocabulary table: the head must not count again."""
    gpt = shape("gpt3-175b")
    layers, hidden = gpt.layers, gpt.hidden
    blocks = layers * (12 * hidden**2 + 13 * hidden)
    assert parameters(gpt) == blocks + (gpt.vocab + gpt.positions) * hidden + 2 * hidden
    assert "head.weight" not in dict(parameter_list(gpt))


@pytest.mark.parametrize(("model", "billions"), [("gpt3-30b", 30), ("llama3-30b", 30), ("gpt3-175b", 175)])
def test_models_weigh_what_their_name_says(model: str, billions: int) -> None:
    """The 30B shapes are our own choice, so nothing else holds them to their name."""
    assert parameters(shape(model)) == pytest.approx(billions * 1e9, rel=0.01)


def test_shapes_that_no_source_gives_are_labelled() -> None:
    """A reader must not take our choice for the study's."""
    ours = {name for name, model in models().items() if model.source.startswith("ours")}
    assert ours == {"gpt3-30b", "llama3-30b", "tiny-deep", "tiny-gpt", "tiny-llama", "tiny-mixtral"}


@pytest.mark.parametrize("model", sorted(models()))
def test_shapes_are_consistent(model: str) -> None:
    """A typo in the table: heads that do not divide the width, MHA without all its heads, experts on a dense model."""
    it = shape(model)
    assert it.heads * it.head_dim == it.hidden
    assert it.heads % it.kv_heads == 0
    assert (it.family is Family.MIXTRAL) == (it.experts > 0) == (it.topk > 0)
    assert (it.family is Family.GPT3) == (it.rope_base is None) == (it.kv_heads == it.heads and it.positions > 0)


@pytest.mark.parametrize("model", sorted(models()))
def test_parameters_come_in_order_of_use(model: str) -> None:
    """DDP fills its buckets in the reverse of this order: sorted by name or by size, predicted counts are wrong."""
    it = shape(model, 2)
    names = [name for name, _ in parameter_list(it)]
    assert len(names) == len(set(names))
    assert names[0] == "embed.weight"
    assert names[-1] == ("norm.bias" if it.tied else "head.weight")
    block = [name for name, _ in block_parameter_list(it)]
    start = 2 if it.positions else 1
    assert names[start : start + len(block)] == [f"blocks.0.{name}" for name in block]
    weights = [name.removesuffix(".weight") for name in block if name.endswith(".weight")]
    attention = ["attn_norm", "attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn_norm"]
    ffn = {
        Family.GPT3: ["ffn.fc1", "ffn.fc2"],
        Family.LLAMA: ["ffn.w1", "ffn.w3", "ffn.w2"],
        Family.MIXTRAL: ["ffn.router", "ffn.w1", "ffn.w3", "ffn.w2"],
    }
    assert weights == attention + ffn[it.family]
    assert (len(block) == 2 * len(weights)) == it.biases


def test_a_reduced_model_keeps_its_widths() -> None:
    """Fewer layers are all that may change, or its time a layer says nothing about the full model."""
    full, reduced = shape("llama3-70b"), shape("llama3-70b", 4)
    assert reduced.layers == 4
    assert block_parameter_list(reduced) == block_parameter_list(full)
    assert parameters(full) - parameters(reduced) == 76 * 855_654_400


@pytest.mark.parametrize("layers", [0, -1, 33])
def test_impossible_depths_are_refused(layers: int) -> None:
    """A model with more layers than it has is another model, under a name that lies."""
    with pytest.raises(BadInput, match=f"llama3-8b has 32 layers, a reduced one 1 to 32, not {layers}"):
        shape("llama3-8b", layers)


def test_an_unknown_model_names_close_ones() -> None:
    """A typo must be a line that one can act on."""
    with pytest.raises(BadInput, match=r"model 'lama3-8b' is not known; did you mean llama3-8b.*models: gpt3-30b"):
        shape("lama3-8b")


def test_tokens_of_a_step() -> None:
    """`seq` left out is the model's own; a reduced model trains the same sequence; the batch is global."""
    work = Training(model="llama3-8b", microbatch=2, layers=4, global_batch=16)
    assert tokens_per_step(Scenario(work=work)) == 16 * 8192
    short = Scenario(work=Training(model="tiny-gpt", microbatch=3, seq=64), options=Options())
    assert (sequence(short), tokens_per_step(short)) == (64, 192)
