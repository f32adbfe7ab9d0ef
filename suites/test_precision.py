"""bf16 against fp8, where matrix units take it; bf16 against fp32 on a CPU."""

import pytest

from pytest_charllm import Rows, scenarios

from . import trends

RANKS = {"*:1x1": "dp1", "*:1x2": "dp2+fsdp", "*:1x4": "dp4+fsdp", "*:1x8": "dp8 dp8+fsdp"}
WHOLE = {"*:1x8": "dp8+fsdp"}
"""As it was published (`baselines/published`)."""


@scenarios(Rows("llama3-8b", RANKS, layers=8), Rows("llama3-8b", WHOLE), precision=("bf16", "fp8"))
def test_llama3_8b(measured):
    measured.check()


@scenarios(Rows("gpt3-175b", RANKS, layers=2), precision=("bf16", "fp8"))
def test_gpt3_175b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(Rows("llama3-1b", RANKS, microbatch=2), precision=("bf16", "fp8"))
def test_llama3_1b(measured):
    measured.check()


@scenarios(Rows("gpt3-175b", RANKS, layers=2), precision="fp8")
def test_fp8_pays_where_layers_are_wide(measured, charllm):
    wide = charllm.measure(trends.with_options(measured.scenario, precision="bf16"))
    trends.at_least("tokens/s/GPU", measured.value("throughput"), wide.value("throughput"))


@scenarios(Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2), precision="bf16", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
