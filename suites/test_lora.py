"""Adapters of rank 32 on frozen weights, against training all of them.

Rows of the study as its files have them: 128 sequences a step with one a microbatch, else 64, but always 128 for the
mixtures; and a whole replica on every GPU, the dense ones of these with 64. No optimizer is shared, nothing is
recomputed or overlapped.
"""

from dataclasses import replace

import pytest

from pytest_charllm import Rows, TrendBroken, scenarios
from pytest_charllm.plugin.fixtures import Measured

from . import trends
from .study import GPT3_175B, H200, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B

SIZES = (1, 2, 4, 8)


def adapted(rows: Rows) -> Rows:
    """The table's layouts without FSDP, with an optimizer to each rank."""
    layouts = " ".join(layout for layout in rows.layouts[H200].split() if "fsdp" not in layout)
    return replace(rows, layouts={H200: layouts}, shares_optimizer=False)


def larger(rows: Rows, global_batch: int) -> Rows:
    """On the study's machine alone."""
    return replace(adapted(rows), microbatch=SIZES[1:], global_batch=global_batch, reduces="")


def replicas(rows: Rows, global_batch: int) -> Rows:
    return Rows(rows.model, {H200: "dp32"}, microbatch=SIZES, global_batch=global_batch)


@scenarios(adapted(GPT3_175B), larger(GPT3_175B, 64), replicas(GPT3_175B, 64), lora=32, overlap=False)
def test_gpt3_175b(measured):
    measured.check()


@scenarios(adapted(LLAMA3_70B), larger(LLAMA3_70B, 64), replicas(LLAMA3_70B, 64), lora=32, overlap=False)
def test_llama3_70b(measured):
    measured.check()


@scenarios(adapted(MIXTRAL_8X7B), larger(MIXTRAL_8X7B, 128), replicas(MIXTRAL_8X7B, 128), lora=32, overlap=False)
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(adapted(MIXTRAL_8X22B), larger(MIXTRAL_8X22B, 128), replicas(MIXTRAL_8X22B, 128), lora=32, overlap=False)
def test_mixtral_8x22b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(Rows("llama3-8b", {"*:1x1": "dp1", "*:1x2": "dp2", "*:1x4": "dp4", "*:1x8": "dp8"}), lora=32)
def test_llama3_8b(measured):
    """Whole: frozen weights need no optimizer."""
    measured.check()


@scenarios(adapted(GPT3_175B), adapted(LLAMA3_70B), lora=32, overlap=False)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_ten_times_as_efficient(measured, charllm):
    """Finding 4, by the study's own measure: throughput over energy. Against the rows that train everything."""
    shares = measured.scenario.layout.dp > 1
    everything = charllm.measure(trends.with_options(measured.scenario, lora=0, distributed_optimizer=shares))

    def efficiency(one: Measured) -> float:
        return one.value("throughput") / one.value("energy_per_token")

    trends.at_least("efficiency over that of training everything", efficiency(measured) / efficiency(everything), 10)


@scenarios(Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2), lora=8, precision="fp32", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
