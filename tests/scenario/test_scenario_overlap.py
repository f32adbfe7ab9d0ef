"""Where the overlap switch does something, and where on and off are an A/A control."""

from __future__ import annotations

import pytest

from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.overlap import no_effect, overlap_of


@pytest.mark.parametrize(
    ("key", "is_cpu", "real"),
    [
        ("llama3-8b.dp2.mb1", False, {"dp": True}),
        ("llama3-8b.dp2.mb1", True, {"dp": True}),
        ("llama3-8b.dp2+fsdp.mb1", False, {"dp": True}),
        ("llama3-8b.dp2+fsdp.mb1", True, {"dp": False}),
        ("llama3-8b.cp2.mb1", False, {"dp": True, "cp": False}),
        ("llama3-8b.cp2+ring.mb1", False, {"dp": True, "cp": True}),
        ("llama3-8b.tp2.mb1", False, {"tp": True}),
        ("llama3-8b.tp2.mb1.eager", False, {"tp": False}),
        ("llama3-8b.tp2+nosp.mb1", False, {"tp": False}),
        ("llama3-8b.tp2pp2.mb1", True, {"tp": False, "pp": False}),
        ("mixtral-8x7b.dp2+ep2.mb1", False, {"dp": True, "ep": False}),
    ],
)
def test_axes_with_traffic(key: str, is_cpu: bool, real: dict[str, bool]) -> None:
    """An axis left out, or one whose switch is told to work where it does nothing."""
    found = overlap_of(parse_key(key), is_cpu)
    assert {each.axis: each.real for each in found} == real
    assert all(each.real == (not each.reason) for each in found)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("llama3-8b.mb1", "there is no traffic to overlap"),
        ("llama3-8b.pp2.mb1.gb4", "pp: a pipeline's schedule sends while it computes, always"),
        ("llama3-8b.tp2.mb1.eager", "tp: async tensor parallelism is the compiler's work"),
    ],
)
def test_a_pair_without_effect_says_why(key: str, reason: str) -> None:
    """An A/A pair that is read as "overlap costs nothing"."""
    assert no_effect(parse_key(key), is_cpu=False) == reason
    assert no_effect(parse_key("llama3-8b.tp2dp2.mb1.eager"), is_cpu=False) is None
