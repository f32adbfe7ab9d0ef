"""What DeepSpeed composes: its rules of feasibility, and its words in a key."""

from __future__ import annotations

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import canonical, parse_key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("llama3-8b.pp2dp4+zero2.mb1.gb64.eager", "engine: deepspeed has no pipeline with zero2"),
        ("llama3-8b.pp2dp4+zero3.mb1.gb64.eager", "engine: deepspeed has no pipeline with zero3"),
        ("gpt3-30b.2L.pp2.mb1.eager", "engine: deepspeed has no pipeline for gpt3-30b: its head is tied"),
        ("mixtral-8x7b.2L.pp2dp4+ep4.mb1.eager", "engine: deepspeed has no pipeline for the experts of mixtral-8x7b"),
        (
            "mixtral-8x7b.2L.dp8+ep8.mb1.eager",
            "engine: deepspeed has the gradient norm of mixtral-8x7b's experts right",
        ),
        (
            "mixtral-8x7b.2L.dp8+ep8+zero3.mb1.eager",
            "engine: deepspeed has the gradient norm of mixtral-8x7b's experts",
        ),
        ("mixtral-8x7b.2L.dp8+ep8+zero1.mb1.eager", "engine: deepspeed has no balanced routing"),
        ("mixtral-8x7b.2L.dp8+ep8+zero1.mb1.real-routing", "engine: deepspeed has no compiled experts"),
        ("llama3-1b.dp8+zero3.mb1", "engine: deepspeed has no compiled blocks with zero3"),
        ("llama3-8b.tp8.mb1.eager", "engine: deepspeed does not do tp (asked tp8)"),
        ("llama3-8b.dp8+fsdp.mb1.eager", "engine: deepspeed does not do sharding fsdp"),
        ("llama3-8b.pp4+gpipe.mb1.gb64.eager", "engine: deepspeed does not do the schedule gpipe"),
        ("llama3-1b.dp8.mb1.dist-opt", "engine: deepspeed does not do distributed optimizer"),
    ],
)
def test_what_does_not_go_together_is_refused(key: str, reason: str) -> None:
    """Minutes into a launch DeepSpeed asserts, hangs, or clips by a norm that is wrong."""
    machine = parse_assume("h200:1x8")
    broken = infeasible(parse_key(f"{key}.deepspeed"), CATALOGUE[machine.variant], machine)
    assert broken is not None
    assert str(broken).startswith(reason)


@pytest.mark.parametrize(
    "key",
    [
        "llama3-1b.dp8.mb1",
        "llama3-1b.dp8+zero1.mb1.no-overlap",
        "llama3-1b.dp8+zero2.mb1.gb64.recompute-full.reduce1000000",
        "llama3-1b.dp8+zero3.mb1.eager.prefetch0.live0",
        "llama3-8b.pp4dp2+zero1.mb1.gb64.eager",
        "mixtral-8x7b.2L.dp8+ep8+zero2.mb1.eager.real-routing",
    ],
)
def test_what_it_composes_is_feasible(key: str) -> None:
    """A rule that is too wide retires rows in silence."""
    machine = parse_assume("h200:1x8")
    assert infeasible(parse_key(f"{key}.deepspeed"), CATALOGUE[machine.variant], machine) is None


def test_buckets_that_a_sharding_lacks_are_no_other_work() -> None:
    """Two keys of the same work would have two baselines; a bucket of 0 gradients never reduces."""
    with pytest.raises(BadInput, match=r"write 'llama3-1b\.dp8\+zero1\.mb1\.reduce7\.deepspeed'"):
        parse_key("llama3-1b.dp8+zero1.mb1.reduce7.prefetch8.deepspeed")
    with pytest.raises(BadInput, match=r"write 'llama3-1b\.dp8\.mb1\.deepspeed'"):
        parse_key("llama3-1b.dp8.mb1.reduce7.deepspeed")
    with pytest.raises(BadInput, match="reduce is 0 elements, it must be at least 1"):
        parse_key("llama3-1b.dp8+zero1.mb1.reduce0.deepspeed")
    scenario = parse_key("llama3-1b.dp8+zero3.mb1.eager.reduce7.prefetch0.live0.deepspeed")
    assert canonical(scenario) == scenario


def test_recomputation_under_zero3_goes_to_the_end() -> None:
    """Its own linear layer is not cut short: a last product more for each block."""
    cut, whole = (
        hardware_flops_per_step(parse_key(f"tiny-llama.2L.dp2+zero{stage}.mb2.seq32.recompute-full.eager.deepspeed"))
        for stage in (2, 3)
    )
    assert whole - cut == 2 * (2 * 2 * 32) * 2 * 704 * 256


def test_a_mixture_has_no_flops_on_paper() -> None:
    """Every expert gets the room of the fullest one: the number follows the routing."""
    with pytest.raises(BadInput, match="follow the routing"):
        hardware_flops_per_step(parse_key("tiny-mixtral.dp2+ep2+zero1.mb1.eager.real-routing.deepspeed"))
