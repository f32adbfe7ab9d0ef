"""Which layout is fastest, coolest, most efficient? Rows of the study recompute in full and overlap nothing, as in its
comparison of layouts (figure 4)."""

from dataclasses import replace

import pytest

from pytest_charllm import Layout, Rows, TrendBroken, scenarios
from pytest_charllm.scenario.bubble import bubble_fraction

from . import trends
from .study import GPT3_30B, GPT3_175B, GPT3_175B_FSDP, LLAMA3_30B, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B


@scenarios(GPT3_175B, GPT3_175B_FSDP, recompute="full", overlap=False)
@scenarios(Rows("gpt3-175b", {"*:1x1": "dp1"}, layers=2))
def test_gpt3_175b(measured):
    measured.check()


@scenarios(LLAMA3_70B, recompute="full", overlap=False)
def test_llama3_70b(measured):
    measured.check()


@scenarios(MIXTRAL_8X7B, recompute="full", overlap=False)
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(MIXTRAL_8X22B, recompute="full", overlap=False)
def test_mixtral_8x22b(measured):
    measured.check()


@scenarios(GPT3_30B, LLAMA3_30B, recompute="full", overlap=False)
def test_30b(measured):
    measured.check()


@scenarios(
    Rows("llama3-8b", {"*:1x1": "dp1"}, layers=8),
    Rows("llama3-8b", {"*:1x2": "dp2+fsdp tp2 pp2", "*:1x4": "dp4+fsdp tp2dp2 tp4 pp4"}, layers=8, global_batch=16),
    Rows("llama3-8b", {"*:1x8": "dp8+fsdp+gathered dp8+hsdp2 tp2dp4+fsdp tp4dp2+fsdp tp8"}, global_batch=64),
    Rows("llama3-8b", {"*:1x8": "dp8+fsdp"}),
)  # fmt: skip
def test_llama3_8b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(
    Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "dp2 dp2+fsdp tp2", "*:1x4": "dp4 dp4+fsdp", "*:1x8": "dp8 dp8+fsdp"})
)
def test_llama3_1b(measured):
    measured.check()


SCHEDULES = {
    "*:1x2": "pp2 pp2+gpipe pp2+interleaved-1f1b",
    "*:1x4": "pp4 pp4+gpipe pp4+interleaved-1f1b",
    "*:1x8": "pp8 pp8+gpipe pp8+interleaved-1f1b",
}
UNCOMPILED = {"*:1x2": "pp2+zbv pp2+dualpipev", "*:1x4": "pp4+zbv pp4+dualpipev", "*:1x8": "pp8+zbv pp8+dualpipev"}
FEW, MANY = 16, 64
"""Microbatches a step."""


@scenarios(Rows("llama3-1b", SCHEDULES, global_batch=FEW), Rows("llama3-1b", SCHEDULES, global_batch=MANY))
@scenarios(Rows("llama3-1b", UNCOMPILED, global_batch=FEW), compile=False)
def test_schedules(measured):
    measured.check()


@scenarios(Rows("llama3-1b", SCHEDULES, global_batch=FEW))
def test_bubble(measured, charllm):
    """More microbatches bring as many more tokens as the formula of the bubble says."""
    few = measured.scenario
    many = charllm.measure(trends.with_work(few, global_batch=MANY))
    busy = {each: 1 - bubble_fraction(few.layout, each) for each in (FEW, MANY)}
    found = many.value("throughput") / measured.value("throughput") / (busy[MANY] / busy[FEW])
    trends.at_least("gain over that of the formula", found, 0.9)
    trends.at_most("gain over that of the formula", found, 1.1)


@scenarios(GPT3_175B, recompute="full", overlap=False, where=lambda row: row.layout.pp == row.layout.world > 1)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_deep_pipelines_throttle_more(measured, charllm):
    """Finding 9: than layouts of as much tensor parallelism as a node allows."""
    ranks = measured.scenario.layout.world
    layout = Layout(tp=min(8, ranks), pp=ranks // min(8, ranks))
    wide = charllm.measure(trends.with_layout(measured.scenario, layout))
    trends.at_most("SM MHz", measured.value("sm_clock"), wide.value("sm_clock"))


@scenarios(Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "dp2+fsdp", "*:1x4": "dp4+fsdp", "*:1x8": "dp8+fsdp"}))
def test_energy_is_power_times_time(measured):
    """Two ways to the same joules: a token's energy, and a GPU's power over the seconds it spends on one."""
    joules = measured.value("mean_power") / measured.value("throughput")
    found = measured.value("energy_per_token") / joules
    trends.at_least("energy over power x time", found, 0.95)
    trends.at_most("energy over power x time", found, 1.05)


TINY = Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2)


@scenarios(TINY, replace(TINY, model="tiny-gpt"), precision="fp32", compile=False)
@scenarios(
    replace(TINY, layouts={"cpu:1x2": "dp2+fsdp tp2"}),
    replace(TINY, layouts={"cpu:1x2": "pp2"}, microbatch=1, global_batch=4),
    precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
