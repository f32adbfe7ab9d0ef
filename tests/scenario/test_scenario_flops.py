"""FLOPs: the published figures, and torch's own count of a decoder that knows nothing of ours."""

from __future__ import annotations

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import Options, Recompute, Scenario, Training
from pytest_charllm.scenario.flops import flops_per_token, hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import Family, ModelShape, parameters, shape, shape_of, trainable_parameters


@pytest.mark.parametrize(("formula", "gigaflops"), [("palm_full", 57.9), ("causal_half", 51.5)])
def test_llama3_8b_at_8192_tokens_as_published(formula: str, gigaflops: float) -> None:
    """The two conventions that public tables of this model use; taking one for the other is 12.5 % off."""
    assert flops_per_token(parse_key("llama3-8b.mb1"), formula) / 1e9 == pytest.approx(gigaflops, abs=0.05)


def test_measured_mfu_is_reproduced() -> None:
    """64,051 tokens/s of the 1.1 B shape at 4,096 tokens were 0.455 of 989 TFLOP/s, by the causal formula."""
    assert 64_051 * flops_per_token(parse_key("llama3-1b.mb2")) / 989e12 == pytest.approx(0.455, abs=0.001)


def test_mixture_counts_the_experts_that_work() -> None:
    """All eight experts in the count would give a Mixtral an MFU above 100 %: 12.9 B of its 46.7 B are active."""
    scenario = parse_key("mixtral-8x7b.mb1.seq1")
    active = flops_per_token(scenario, "palm_full") / 6
    embedding = 32000 * 4096
    assert active + embedding == pytest.approx(12.9e9, rel=0.01)


def test_tied_head_counts_once_and_positions_never() -> None:
    """A tied table is read as embedding and multiplied as head: once in the FLOPs, not zero times and not twice."""
    scenario = parse_key("tiny-gpt.mb1.seq1")
    gpt = shape_of(scenario)
    norms = (2 * gpt.layers + 1) * 2 * gpt.hidden
    biases = gpt.layers * (5 * gpt.hidden + gpt.ffn)
    weights = parameters(gpt) - gpt.positions * gpt.hidden - norms - biases
    attention = 12 * gpt.layers * gpt.hidden
    assert flops_per_token(scenario, "palm_full") == 6 * weights + attention


def test_unknown_formula_is_refused() -> None:
    """An MFU without a known formula is a number without a meaning."""
    with pytest.raises(BadInput, match="FLOP formula '6N' is not known; formulas: causal_half, palm_full"):
        flops_per_token(parse_key("llama3-8b.mb1"), "6N")


def test_step_scales_with_the_global_batch() -> None:
    """The count is of all ranks and all microbatches together, not of one rank."""
    one, many = parse_key("tiny-llama.mb1"), parse_key("tiny-llama.dp2.mb2.gb16")
    assert hardware_flops_per_step(many) == 16 * hardware_flops_per_step(one)


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("model", ["tiny-gpt", "tiny-llama"])
def test_torch_counts_the_same(model: str, recompute: Recompute) -> None:
    """The strict FLOP check asks for equality, so a product more or less, or a recomputed one forgotten, must show."""
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    aten, functional = torch.ops.aten, torch.nn.functional
    attention, attention_backward = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    kept = [aten.mm.default, aten.addmm.default, attention.default]
    mapping = {  # Every query head has a product of its own; older versions refuse fewer heads of keys and values.
        attention: lambda q, *args, **kwargs: sdpa_flop_count(q, q, q),
        attention_backward: lambda grad, q, *args, **kwargs: sdpa_backward_flop_count(grad, q, q, q),
    }
    work = Training(model=model, layers=2, microbatch=2, seq=16)
    scenario = Scenario(work=work, options=Options(recompute=recompute))
    it = shape(model, 2)
    weights = {name: torch.randn(size, requires_grad=True) for name, size in _block_weights(it).items()}
    table = torch.randn(it.vocab, it.hidden, requires_grad=True)

    def linear(x, name):
        bias = torch.zeros(weights[name].shape[0], requires_grad=True) if it.biases else None
        return functional.linear(x, weights[name], bias)

    def block(x):
        q, k, v = (linear(x, name).unflatten(-1, (-1, it.head_dim)).transpose(1, 2) for name in ("wq", "wk", "wv"))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=it.heads != it.kv_heads)
        x = x + linear(out.transpose(1, 2).flatten(2), "wo")
        if it.family is Family.GPT3:
            return x + linear(functional.gelu(linear(x, "fc1")), "fc2")
        return x + linear(functional.silu(linear(x, "w1")) * linear(x, "w3"), "w2")

    def layer(x):
        if recompute is Recompute.NONE:
            return block(x)
        if recompute is Recompute.FULL:
            return checkpoint(block, x, use_reentrant=False)
        contexts = lambda: create_selective_checkpoint_contexts(kept)  # noqa: E731
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    tokens = torch.randint(0, it.vocab, (2, 16))
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        x = functional.embedding(tokens, table)
        for _ in range(it.layers):
            x = layer(x)
        functional.cross_entropy(functional.linear(x, table).flatten(0, 1), tokens.flatten()).backward()
    assert counter.get_total_flops() == hardware_flops_per_step(scenario)


def _block_weights(it: ModelShape) -> dict[str, tuple[int, int]]:
    square, narrow = (it.hidden, it.hidden), (it.kv_heads * it.head_dim, it.hidden)
    attention = {"wq": square, "wk": narrow, "wv": narrow, "wo": square}
    if it.family is Family.GPT3:
        return attention | {"fc1": (it.ffn, it.hidden), "fc2": (it.hidden, it.ffn)}
    return attention | {"w1": (it.ffn, it.hidden), "w3": (it.ffn, it.hidden), "w2": (it.hidden, it.ffn)}


def test_frozen_weights_count_four_and_adapters_six() -> None:
    """6 N for everything would overstate the MFU of a LoRA scenario by almost a half."""
    full, lora = (parse_key(f"llama3-8b.mb1.seq1{option}") for option in ("", ".lora32"))
    attention = 6 * 32 * 4096 * 2 / 2
    weights = (flops_per_token(full) - attention) / 6
    adapters = trainable_parameters(lora)
    assert adapters == 32 * 32 * (3 * 4096 + 4096 + 2 * 1024)
    assert flops_per_token(lora) == 4 * weights + 6 * adapters + attention
