"""The same work spread in different ways. Rows of the study recompute in full, as in its comparison of layouts."""

from pytest_charllm import Rows, scenarios

from .study import GPT3_175B, LLAMA3_70B


@scenarios(GPT3_175B, recompute="full")
@scenarios(Rows("gpt3-175b", {"*:1x1": "dp1"}, layers=2))
def test_gpt3_175b(measured):
    measured.check()


@scenarios(LLAMA3_70B, recompute="full")
def test_llama3_70b(measured):
    measured.check()


@scenarios(Rows("llama3-8b", {"*:1x8": "dp8+fsdp"}))
@scenarios(Rows("llama3-8b", {"*:1x1": "dp1"}, layers=8))
def test_llama3_8b(measured):
    measured.check()


@scenarios(Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "dp2 dp2+fsdp", "*:1x8": "dp8 dp8+fsdp"}))
def test_llama3_1b(measured):
    measured.check()


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2),
    Rows("tiny-gpt", {"cpu:1x2": "dp2"}, microbatch=2),
    precision="fp32", compile=False,
)  # fmt: skip
@scenarios(Rows("tiny-llama", {"cpu:1x2": "dp2+fsdp"}, microbatch=2), precision="fp32", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
