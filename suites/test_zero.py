"""DeepSpeed's ZeRO, stage by stage, against the native engine in the same shapes: stage 0 is its DDP, 1 its distributed
optimizer, 3 its FSDP2. Also DeepSpeed's pipeline and experts. All of it uncompiled, since stage 3 is."""

from dataclasses import replace

from pytest_charllm import Rows, scenarios


def on_nodes(layouts: str, *sizes: int) -> dict[str, str]:
    return {f"*:1x{size}": layouts.format(n=size) for size in sizes}


def native(rows: Rows, layouts: str, *sizes: int) -> tuple[Rows, Rows]:
    """Also with a shared optimizer, where there is one to share."""
    plain = replace(rows, layouts=on_nodes(layouts, *sizes))
    return plain, replace(plain, shares_optimizer=True)


STAGES = "dp{n} dp{n}+zero1 dp{n}+zero2 dp{n}+zero3"
LLAMA3_8B = Rows("llama3-8b", on_nodes(STAGES, 8))
LLAMA3_1B = Rows("llama3-1b", on_nodes(STAGES, 2, 4, 8))


@scenarios(LLAMA3_8B, engine="deepspeed", compile=False)
@scenarios(*native(LLAMA3_8B, "dp{n} dp{n}+fsdp", 8), compile=False)
def test_llama3_8b(measured):
    measured.check()


@scenarios(LLAMA3_1B, engine="deepspeed", compile=False, overlap=(True, False))
@scenarios(*native(LLAMA3_1B, "dp{n} dp{n}+fsdp", 2, 4, 8), compile=False, overlap=(True, False))
def test_llama3_1b(measured):
    measured.check()


PIPELINE = Rows("llama3-8b", {"*:1x8": "pp4dp2 pp4dp2+zero1"}, global_batch=64)


@scenarios(PIPELINE, engine="deepspeed", compile=False)
@scenarios(replace(PIPELINE, layouts={"*:1x8": "pp4dp2"}), compile=False)
def test_llama3_8b_pipeline(measured):
    measured.check()


MIXTRAL_8X7B = Rows("mixtral-8x7b", {"*:1x8": "dp8+ep8+zero1 dp8+ep8+zero2"}, layers=4)


@scenarios(MIXTRAL_8X7B, engine="deepspeed", compile=False, real_routing=True)
@scenarios(replace(MIXTRAL_8X7B, layouts={"*:1x8": "dp8+ep8+fsdp"}), compile=False, real_routing=True)
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(
    Rows("tiny-deep", on_nodes("dp{n}+zero1 dp{n}+zero2 dp{n}+zero3", 2, 4, 8)), engine="deepspeed", compile=False
)
@scenarios(Rows("tiny-deep", on_nodes("dp{n} dp{n}+fsdp", 2, 4, 8)), compile=False)
def test_many_small_parameters(measured):
    """What the host does for each parameter or gradient, which larger models hide."""
    measured.check()


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": STAGES.format(n=2)}, microbatch=2),
    engine="deepspeed", precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
