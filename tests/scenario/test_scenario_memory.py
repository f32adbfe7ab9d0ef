"""The memory estimate against a measured peak, closed forms, and the directions that it must go."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.scenario import Layout, Scenario, Sharding, Training
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.memory import MemoryNeed, need
from pytest_charllm.scenario.models import parameters, shape

GIB = 1 << 30


def test_measured_peak_is_met() -> None:
    """llama3-1b, microbatch 2, FSDP2 on one H200, compiled: 23.58 GiB was the peak of every launch."""
    scenario = Scenario(work=Training(model="llama3-1b", microbatch=2), layout=Layout(dp=1, sharding=Sharding.FSDP))
    assert need(scenario).total / GIB == pytest.approx(23.58, rel=0.10)


def test_state_of_plain_data_parallel() -> None:
    """Master weights, gradients and two moments in fp32 are 16 bytes a parameter, and bf16 copies 2; fp32 has none."""
    count = parameters(shape("llama3-1b"))
    bf16, fp32 = need(parse_key("llama3-1b.dp8.mb1")), need(parse_key("llama3-1b.dp8.mb1.fp32"))
    assert (bf16.parameters, bf16.gradients, bf16.optimizer) == (6 * count, 4 * count, 8 * count)
    assert (fp32.parameters, fp32.gradients, fp32.optimizer) == (4 * count, 4 * count, 8 * count)


@pytest.mark.parametrize(
    ("sharding", "parts"),
    [
        (Sharding.ZERO1, (2 + 4 / 8, 4, 1)),
        (Sharding.ZERO2, (2 + 4 / 8, 4 / 8, 1)),
        (Sharding.FSDP, (4 / 8, 4 / 8, 1)),
        (Sharding.ZERO3, (4 / 8, 4 / 8, 1)),
    ],
)
def test_sharding_divides_what_it_shards(sharding: Sharding, parts: tuple[float, float, float]) -> None:
    """Bytes a parameter at dp8, without the blocks that are gathered at one time."""
    model = shape("llama3-8b")
    count = parameters(model)
    it = need(Scenario(work=Training(model="llama3-8b", microbatch=1), layout=Layout(dp=8, sharding=sharding)))
    gathered = 0.0
    if sharding in (Sharding.FSDP, Sharding.ZERO3):
        gathered = 2 * (2 * model.vocab * model.hidden + model.hidden + 2 * 218_112_000)
    assert it.parameters == pytest.approx(parts[0] * count + gathered, rel=1e-6)
    assert (it.gradients, it.optimizer) == (pytest.approx(parts[1] * count), pytest.approx(parts[2] * count))


def test_a_shared_optimizer_has_a_share_of_its_state() -> None:
    """Moments were counted whole on every rank: rows of the study that fit were refused. Weights and gradients are
    whole, beside the piece of the gradients that a rank updates with."""
    count = parameters(shape("llama3-1b"))
    it = need(parse_key("llama3-1b.dp8.mb1.dist-opt"))
    assert (it.parameters, it.optimizer) == (6 * count, pytest.approx(8 * count / 8))
    assert it.gradients == pytest.approx(4 * count + 4 * count / 8)


def test_experts_that_no_other_rank_has_have_no_piece_beside_them() -> None:
    """Their gradients are what a rank updates with; between copies of them they are summed into a piece first."""
    model = shape("mixtral-8x7b")
    experts = 3 * model.experts * model.hidden * model.ffn * 2
    rest = parameters(msgspec.structs.replace(model, layers=2)) - experts
    apart, copied = (need(parse_key(f"mixtral-8x7b.2L.dp8+ep{ep}.mb1.dist-opt")) for ep in (8, 4))
    assert apart.gradients == pytest.approx(4 * (rest + experts / 8 + rest / 8))
    assert copied.gradients == pytest.approx(4 * (rest + experts / 4 + rest / 8 + experts / 8))
    assert apart.optimizer == pytest.approx(copied.optimizer) == pytest.approx(8 * (rest / 8 + experts / 8))


def test_gradients_that_come_as_activations_go_do_not_add_up() -> None:
    """Adding both refuses scenarios that fit; with accumulation the gradients are there before and do add up."""
    once, twice = need(parse_key("llama3-1b.mb2")), need(parse_key("llama3-1b.mb2.gb4"))
    assert once.total == once.parameters + once.optimizer + once.activations + once.logits
    assert twice.total == once.total + twice.gradients


def test_experts_are_divided_by_ep_and_then_only_sharded_among_their_copies() -> None:
    """Dividing experts by ep and by all of dp again counts eight times too little."""
    plain, split = need(parse_key("mixtral-8x7b.dp8.mb1")), need(parse_key("mixtral-8x7b.dp8+ep8.mb1"))
    expert_bytes = 8 * 32 * 8 * 3 * 4096 * 14336
    assert plain.optimizer - split.optimizer == expert_bytes * 7 // 8
    sharded = need(parse_key("mixtral-8x7b.dp8+ep8+fsdp.mb1"))
    dense_bytes = plain.optimizer - expert_bytes
    assert sharded.optimizer == pytest.approx(dense_bytes / 8 + expert_bytes / 8)


def test_first_pipeline_stage_holds_as_many_microbatches_as_stages() -> None:
    """1F1B fills the pipeline before the first backward pass: one microbatch in flight underestimates pp-fold."""
    one, many = need(parse_key("gpt3-175b.tp8pp4.mb1")), need(parse_key("gpt3-175b.tp8pp4.mb1.gb128"))
    assert many.activations == 4 * one.activations


def test_schedules_keep_what_they_have_in_flight() -> None:
    """GPipe keeps all microbatches, with their logits; a V keeps as much as 1F1B, on every rank, and has the embedding
    and the head on one of them."""
    layouts = {name: need(parse_key(f"llama3-8b.pp4{name}.mb1.gb16.eager")) for name in ("", "+gpipe", "+zbv")}
    assert layouts["+gpipe"].activations == 4 * layouts[""].activations
    assert layouts["+zbv"].activations == layouts[""].activations
    assert layouts["+zbv"].optimizer > layouts[""].optimizer
    last = [need(parse_key(f"llama3-8b.2L.pp2{name}.mb1.gb16.eager")) for name in ("", "+gpipe")]
    assert last[1].logits > 4 * last[0].logits


def test_a_pipeline_keeps_sharded_weights_and_gradients_whole() -> None:
    """Counting them as freed between microbatches lets scenarios start that cannot fit."""
    whole, freed = need(parse_key("llama3-8b.pp2dp4+fsdp.mb1.gb8")), need(parse_key("llama3-8b.dp8+fsdp.mb1.gb16"))
    assert whole.gradients > 3 * freed.gradients
    assert whole.parameters > freed.parameters


def test_uneven_stages_count_the_heaviest() -> None:
    """The stage that runs out of memory is the largest one, wherever it is."""
    even, uneven = need(parse_key("llama3-8b.pp4.mb1")), need(parse_key("llama3-8b.pp4+s4-4-4-20.mb1"))
    assert uneven.optimizer > 2 * even.optimizer


SIZES = st.sampled_from([1, 2, 4, 8])


@settings(deadline=None)
@given(
    model=st.sampled_from(["gpt3-30b", "llama3-8b", "mixtral-8x7b"]),
    tp=SIZES, pp=SIZES, dp=SIZES, microbatch=SIZES, accumulation=SIZES,
    sharding=st.sampled_from([Sharding.NONE, Sharding.ZERO1, Sharding.ZERO2, Sharding.FSDP]),
)  # fmt: skip
def test_directions(
    model: str, tp: int, pp: int, dp: int, microbatch: int, accumulation: int, sharding: Sharding
) -> None:
    """Recomputation and tensor parallelism never need more, a larger microbatch never less; parts bound the total."""

    def of(recompute: str = "", **changes: int) -> MemoryNeed:
        sizes = {"tp": tp, "microbatch": microbatch} | changes
        work = Training(
            model=model, microbatch=sizes["microbatch"], global_batch=sizes["microbatch"] * dp * accumulation
        )
        layout = Layout(tp=sizes["tp"], pp=pp, dp=dp, sharding=sharding)
        base = parse_key(f"{model}.mb1{recompute}")
        return need(msgspec.structs.replace(base, work=work, layout=layout))

    none, selective, full = of(), of(".recompute-selective"), of(".recompute-full")
    assert full.total <= selective.total <= none.total
    assert of(microbatch=2 * microbatch).total >= none.total
    assert of(tp=2 * tp).total <= none.total
    largest = max(none.gradients, none.activations + none.logits)
    fixed = none.parameters + none.optimizer
    assert fixed + largest - 2 <= none.total <= fixed + none.gradients + none.activations + none.logits + 2


def test_ulysses_keeps_what_it_exchanged() -> None:
    """The output of attention is there twice, by heads and by tokens; a ring has it once."""
    ulysses, ring = need(parse_key("llama3-8b.cp2.mb1")), need(parse_key("llama3-8b.cp2+ring.mb1"))
    it = shape("llama3-8b")
    assert ulysses.activations - ring.activations == 2 * it.layers * it.hidden * it.seq // 2


def test_chunked_loss_has_the_logits_of_a_chunk() -> None:
    """4,096 tokens of 32,768 at a time; the gradients of hidden states and head are there in their place."""
    whole, chunked = need(parse_key("llama3-8b.mb4")), need(parse_key("llama3-8b.mb4.chunked-loss"))
    it = shape("llama3-8b")
    assert whole.logits == 32_768 * it.vocab * 4
    assert chunked.logits == 4_096 * it.vocab * 4 + 32_768 * it.hidden * 2 + it.vocab * it.hidden * 6
    assert chunked.total < whole.total


def test_frozen_weights_have_no_state() -> None:
    """A 70 B model whose adapters are trained needs its weights in bf16 and little else; sharded, they keep masters."""
    it = need(parse_key("llama3-70b.mb1.recompute-full.lora32"))
    adapters = 80 * 32 * (3 * 8192 + 8192 + 2 * 1024)
    count = parameters(shape("llama3-70b"))
    assert (it.parameters, it.gradients, it.optimizer) == (
        2 * (count + adapters) + 4 * adapters,
        2 * adapters,
        8 * adapters,
    )
    sharded = need(parse_key("llama3-70b.dp8+fsdp.mb1.recompute-full.lora32"))
    assert sharded.parameters > (count + adapters) * 4 / 8
    assert sharded.optimizer == adapters


def test_gradients_of_lowered_weights_are_as_narrow() -> None:
    """One rank alone sends none, so nothing widens them, unless several are to be summed."""
    alone, summed, eager = (
        need(parse_key(f"llama3-1b.{rest}")).gradients for rest in ("mb1", "mb1.gb4", "mb1.eager")
    )  # fmt: skip
    assert 2 * alone == summed == eager
