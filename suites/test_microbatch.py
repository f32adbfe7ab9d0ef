"""The same global batch in smaller or larger pieces, with full recomputation in the rows of the study."""

from dataclasses import replace

from pytest_charllm import Rows, scenarios

from .study import GPT3_175B, LLAMA3_70B

MICROBATCHES = (1, 2, 4, 8)


@scenarios(replace(GPT3_175B, microbatch=MICROBATCHES), recompute="full", on="h200-sxm:4x8")
def test_gpt3_175b(measured):
    measured.check()


@scenarios(replace(LLAMA3_70B, microbatch=MICROBATCHES), recompute="full", on="h200-sxm:4x8")
def test_llama3_70b(measured):
    measured.check()


@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}, microbatch=(1, 2, 4)))
def test_llama3_1b(measured):
    measured.check()


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=1),
    Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2, global_batch=8),
    precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
