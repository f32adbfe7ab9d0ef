"""Where do larger microbatches stop paying, and start to throttle? The same global batch in smaller or larger pieces,
with full recomputation and nothing overlapped (figures 13 and 15)."""

from dataclasses import replace

import pytest

from pytest_charllm import Rows, TrendBroken, scenarios

from . import trends
from .study import GPT3_30B, GPT3_175B, LLAMA3_30B, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B, on_h200

SIZES = (1, 2, 4, 8)


def swept(rows):
    return replace(rows, microbatch=SIZES)


@scenarios(swept(on_h200(GPT3_175B)), recompute="full", overlap=False)
def test_gpt3_175b(measured):
    measured.check()


@scenarios(swept(on_h200(LLAMA3_70B)), recompute="full", overlap=False)
def test_llama3_70b(measured):
    measured.check()


@scenarios(swept(on_h200(MIXTRAL_8X7B)), recompute="full", overlap=False)
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(replace(swept(on_h200(MIXTRAL_8X22B)), reduces=""), recompute="full", overlap=False)
def test_mixtral_8x22b(measured):
    measured.check()


@scenarios(swept(GPT3_30B), swept(LLAMA3_30B), recompute="full", overlap=False)
def test_30b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "dp2", "*:1x8": "dp8"}, microbatch=(1, 2, 4)))
def test_llama3_1b(measured):
    measured.check()


def divides(row):
    """Into the largest microbatches too."""
    return row.training.microbatch == SIZES[0] and row.global_batch % (SIZES[-1] * row.layout.dp) == 0


@scenarios(swept(on_h200(GPT3_175B)), swept(on_h200(LLAMA3_70B)), recompute="full", overlap=False, where=divides)
def test_knee(measured, charllm, record_property):
    """Tokens per second rise up to one size, and then fall: a second hill is something else that is going on."""
    row = measured.scenario
    sizes = [charllm.measure(trends.with_work(row, microbatch=size)).value("throughput") for size in SIZES[1:]]
    speeds = [measured.value("throughput"), *sizes]
    record_property("knee", SIZES[speeds.index(max(speeds))])
    trends.has_one_peak("tokens/s/GPU", speeds)


LARGEST = {"recompute": "full", "overlap": False, "where": lambda row: row.training.microbatch == SIZES[-1]}


@scenarios(swept(on_h200(GPT3_175B)), **LARGEST)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_larger_ones_peak_higher(measured, charllm):
    """Finding 6: whether or not throughput rises."""
    smallest = charllm.measure(trends.with_work(measured.scenario, microbatch=SIZES[0]))
    trends.at_least("peak W", measured.value("peak_power"), smallest.value("peak_power"))


@scenarios(swept(on_h200(GPT3_175B)), **LARGEST)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_larger_ones_are_burstier(measured, charllm):
    """Finding 6, where a step is long enough for the sensor to follow and power is not at its cap all the time."""
    smallest = charllm.measure(trends.with_work(measured.scenario, microbatch=SIZES[0]))
    trends.at_least("bursts", measured.value("power_burstiness"), smallest.value("power_burstiness"))


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2, global_batch=8),
    precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
