"""What do overlap and recomputation buy, alone and together? Rows of the study in all four combinations (its figures
5, 8 and 17): its bitmaps 00000, 10000, 01000 and 11000."""

from dataclasses import replace

import pytest

from pytest_charllm import Rows, Scenario, TrendBroken, scenarios
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.overlap import no_effect

from . import trends
from .study import GPT3_30B, GPT3_175B, GPT3_175B_FSDP, LLAMA3_30B, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B

COMBINATIONS = {
    "recompute": ("none", "full"),
    "overlap": (False, True),
    "where": lambda row: row.layout.world > 1 or not row.options.overlap,
}


@scenarios(GPT3_175B, GPT3_175B_FSDP, **COMBINATIONS)
def test_gpt3_175b(measured):
    measured.check()


@scenarios(LLAMA3_70B, **COMBINATIONS)
def test_llama3_70b(measured):
    measured.check()


@scenarios(MIXTRAL_8X7B, **COMBINATIONS)
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(MIXTRAL_8X22B, **COMBINATIONS)
def test_mixtral_8x22b(measured):
    measured.check()


@scenarios(GPT3_30B, LLAMA3_30B, **COMBINATIONS)
def test_30b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(
    Rows("llama3-8b", {"*:1x1": "dp1", "*:1x2": "dp2+fsdp", "*:1x4": "dp4+fsdp", "*:1x8": "dp8+fsdp"}, layers=8),
    recompute=("none", "selective", "full"),
)
def test_llama3_8b(measured):
    measured.check()


STUDIED = (GPT3_175B, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B)


def without_effect(row: Scenario) -> bool:
    return row.layout.world > 1 and no_effect(row, is_cpu=False) is not None


@scenarios(*STUDIED, recompute=("none", "full"), overlap=True, where=without_effect)
def test_switch_without_effect(measured, charllm):
    """A/A controls: where there is nothing to overlap, the switch changes nothing. What differs is noise."""
    off = charllm.measure(trends.with_options(measured.scenario, overlap=False))
    found = measured.value("throughput") / off.value("throughput")
    trends.at_least("tokens/s over those of the same work", found, 0.97)
    trends.at_most("tokens/s over those of the same work", found, 1.03)


@scenarios(GPT3_175B, LLAMA3_70B, recompute="full", overlap=False)
def test_recomputation(measured, charllm):
    """It saves memory, and makes a step longer by no more than the products that are done again."""
    kept = charllm.measure(trends.with_options(measured.scenario, recompute="none"))
    products = hardware_flops_per_step(measured.scenario) / hardware_flops_per_step(kept.scenario)
    longer = measured.value("step_time") / kept.value("step_time")
    trends.at_most("bytes at the peak", measured.value("peak_memory"), kept.value("peak_memory"))
    trends.at_least("step over that without", longer, 1.0)
    trends.at_most("step over that without", longer, 1.05 * products)


@scenarios(
    GPT3_175B, LLAMA3_70B, recompute="full", overlap=True, where=lambda row: no_effect(row, is_cpu=False) is None
)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_overlap_heats(measured, charllm):
    """Finding 7: it raises the peak temperature."""
    off = charllm.measure(trends.with_options(measured.scenario, overlap=False))
    trends.at_least("core degC", measured.value("core_temp_p95"), off.value("core_temp_p95"))


@scenarios(GPT3_175B, recompute="full", overlap=False, where=lambda row: row.layout.pp == row.layout.world > 1)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_recomputation_cools_deep_pipelines(measured, charllm):
    """Finding 8, first half: less throttling in a deep pipeline."""
    kept = charllm.measure(trends.with_options(measured.scenario, recompute="none"))
    trends.at_least("SM MHz", measured.value("sm_clock"), kept.value("sm_clock"))


@scenarios(LLAMA3_70B, recompute="full", overlap=False, where=lambda row: row.layout.dp > 1)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_recomputation_heats_data_parallel(measured, charllm):
    """Finding 8, second half: more throttling where ranks are data parallel."""
    kept = charllm.measure(trends.with_options(measured.scenario, recompute="none"))
    trends.at_most("SM MHz", measured.value("sm_clock"), kept.value("sm_clock"))


TINY = Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2)


@scenarios(TINY, recompute="full", precision="fp32", compile=False, speed=False)
def test_tiny_recompute(measured):
    measured.check()


@scenarios(replace(TINY, shares_optimizer=True), overlap=False, precision="fp32", compile=False, speed=False)
def test_tiny_optimizer(measured):
    measured.check()
