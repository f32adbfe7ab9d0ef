"""DeepSpeed's ZeRO, stage by stage; its pipeline and its experts. Uncompiled, since stage 3 is."""

from pytest_charllm import Rows, scenarios

STAGES = "dp{n} dp{n}+zero1 dp{n}+zero2 dp{n}+zero3"


@scenarios(Rows("llama3-8b", {"*:1x8": STAGES.format(n=8)}), engine="deepspeed", compile=False)
def test_llama3_8b(measured):
    measured.check()


@scenarios(
    Rows("llama3-1b", {"*:1x2": STAGES.format(n=2), "*:1x8": STAGES.format(n=8)}),
    engine="deepspeed", compile=False, overlap=(True, False),
)  # fmt: skip
def test_llama3_1b(measured):
    measured.check()


@scenarios(Rows("llama3-8b", {"*:1x8": "pp4dp2 pp4dp2+zero1"}, global_batch=64), engine="deepspeed", compile=False)
def test_llama3_8b_pipeline(measured):
    measured.check()


@scenarios(
    Rows("mixtral-8x7b", {"*:1x8": "dp8+ep8+zero1 dp8+ep8+zero2"}, layers=4),
    engine="deepspeed", compile=False, real_routing=True,
)  # fmt: skip
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(
    Rows("tiny-deep", {"*:1x2": "dp2+zero1 dp2+zero2 dp2+zero3", "*:1x8": "dp8+zero1 dp8+zero2 dp8+zero3"}),
    engine="deepspeed", compile=False,
)  # fmt: skip
def test_many_small_parameters(measured):
    """What the host does for each parameter or gradient, which larger models hide."""
    measured.check()


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": STAGES.format(n=2)}, microbatch=2),
    engine="deepspeed", precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
