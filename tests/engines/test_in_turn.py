"""benchmarks/engine_vs_torchtitan.py without a GPU: its variants are what they are called, and its ratios by round."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pytest_charllm.engines.native import gradients
from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.key import parse_key

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_levers_are_moved_and_put_back() -> None:
    """A lever that stays moved would be in force for the variant that it is compared with, too."""
    from in_turn.variants import parse

    variant = parse(
        "native:IN_TURN=1,pytest_charllm.engines.native.gradients:MAX_GRAD_NORM=0.5,options.chunked_loss=True"
    )
    before = gradients.MAX_GRAD_NORM
    with variant.in_force():
        assert (os.environ["IN_TURN"], gradients.MAX_GRAD_NORM) == ("1", 0.5)
    assert ("IN_TURN" in os.environ, gradients.MAX_GRAD_NORM) == (False, before)
    assert variant.scenario(parse_key("tiny-llama.mb1")).key == "tiny-llama.mb1.chunked-loss"


@pytest.mark.parametrize(
    "text",
    ["natve", "native:MISSING", "native:pytest_charllm.engines.native.gradients:MAX_NORM=1", "native:options.colour=1"],
)
def test_a_lever_that_does_not_exist_is_refused(text: str) -> None:
    """Moving nothing would read like a lever without effect."""
    from in_turn.variants import parse

    with pytest.raises(BadInput, match=text.partition(":")[0]):
        variant = parse(text)
        variant.scenario(parse_key("tiny-llama.mb1"))
        with variant.in_force():
            pass


def test_variants_do_not_share_compiled_code() -> None:
    """Dynamo hands out what it has compiled wherever its guards hold, whatever the compiler's settings are by then."""
    from in_turn.settings import CompilerSettings, OwnCode

    compiled: list[bool] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        compiled.append(torch._inductor.config.shape_padding)
        return graph.forward

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    shipped = torch._inductor.config.shape_padding
    for other in (shipped, not shipped):
        settings, code = CompilerSettings(), OwnCode()
        with settings.in_force(), code.in_force():
            torch._inductor.config.shape_padding = other
            both = [torch.compile(double, backend=backend) for _ in range(2)]
        assert torch._inductor.config.shape_padding is shipped
        with settings.in_force():
            assert [each(torch.ones(2)).tolist() for each in both] == [[2, 2], [2, 2]]
    assert compiled == [shipped, not shipped]


def test_ratios_are_of_the_same_round() -> None:
    """The card drifts: a ratio of medians of different rounds would show that as a difference of engines."""
    from in_turn.figures import Seen, figures, table
    from in_turn.told import Block, Built, Failed, Matmul, Told

    def built(name: str) -> Built:
        return Built(
            variant=name, parameters=1, attention="cudnn", experts=None, first_loss=8.0, first_step_s=9.0,
            step_s=0.1, held_bytes=None,
        )  # fmt: skip

    def block(name: str, number: int, elapsed_s: float) -> Block:
        return Block(
            variant=name, round=number, dropped=3, step_s=(elapsed_s / 2,) * 2, elapsed_s=elapsed_s, begin_ns=0,
            end_ns=1, peak_bytes=None, last_loss=7.0, compiled=0,
        )  # fmt: skip

    told: list[Told] = [
        built("native"), built("torchtitan"), Matmul(round=0, width=8, dtype="bfloat16", products=9, flop_per_s=1e12),
        block("native", 0, 1.0), block("torchtitan", 0, 1.1), block("torchtitan", 1, 2.2), block("native", 1, 2.0),
        block("native", 2, 1.0), Failed(variant="torchtitan", message="gone"),
    ]  # fmt: skip
    row = figures(parse_key("tiny-llama.mb1"), told, Seen(None, ()))
    ratio = row["ratios"]["torchtitan"]
    assert ratio["rounds"] == pytest.approx([1.1, 1.1])
    assert ratio["confidence"] == 0.5
    assert row["failed"] == {"torchtitan": "gone"}
    assert "1.100 (1.100..1.100)" in table([row])
    assert table([]) == "nothing was measured"


@pytest.mark.parametrize(("left_s", "rounds", "block_s"), [(80.0, 6, 4.0), (34.0, 4, 2.65), (5.0, 2, 2.0)])
def test_rounds_fit_into_the_time_of_a_row(left_s: float, rounds: int, block_s: float) -> None:
    """An odd number of rounds would have one variant follow the other more often."""
    from in_turn.rank import fitting
    from in_turn.told import Spec

    spec = Spec(
        variants=("native", "torchtitan"), wheel="", rounds=6, block_s=4.0, least_block_s=2.0, settle_s=0.6,
        matmul_s=2.0, until_ns=0, limit_s=1.0, apart=False, source="cpu", uuids=(), trace="", out="",
    )  # fmt: skip
    assert fitting(left_s, 2, spec) == (rounds, pytest.approx(block_s))
