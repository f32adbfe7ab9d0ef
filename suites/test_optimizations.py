"""Switches that change how the same work is computed: recomputation, precision, compilation."""

from pytest_charllm import Rows, scenarios

from .study import GPT3_175B, LLAMA3_70B

RECOMPUTE = ("none", "full")


@scenarios(GPT3_175B, recompute=RECOMPUTE)
def test_gpt3_175b(measured):
    measured.check()


@scenarios(LLAMA3_70B, recompute=RECOMPUTE)
def test_llama3_70b(measured):
    measured.check()


TINY = Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2)
TINY_FSDP = Rows("tiny-llama", {"cpu:1x2": "dp2+fsdp"}, microbatch=2)


@scenarios(TINY, recompute="full", precision="fp32", compile=False)
@scenarios(TINY, recompute="selective", precision="fp32", compile=False, speed=False)
@scenarios(TINY_FSDP, recompute="full", precision="fp32", compile=False, speed=False)
def test_tiny_recompute(measured):
    measured.check()


@scenarios(TINY, precision="bf16", compile=False, speed=False)
def test_tiny_precision(measured):
    measured.check()


@scenarios(TINY, precision="fp32", compile=True, speed=False)
def test_tiny_compile(measured):
    measured.check()
