"""Where do larger microbatches stop paying, and start to throttle? The same global batch in smaller or larger pieces,
with full recomputation and nothing overlapped (figures 13 and 15)."""

from dataclasses import replace

import pytest

from pytest_charllm import Rows, Scenario, TrendBroken, scenarios
from pytest_charllm.plugin.fixtures import Measured

from . import trends
from .study import GPT3_30B, GPT3_175B, LLAMA3_30B, LLAMA3_70B, MIXTRAL_8X7B, MIXTRAL_8X22B, on_h200

SIZES = (1, 2, 4, 8)


def swept(rows: Rows) -> Rows:
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
@scenarios(Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "dp2", "*:1x4": "dp4", "*:1x8": "dp8"}, microbatch=(1, 2, 4)))
def test_llama3_1b(measured):
    measured.check()


def divides(row: Scenario) -> bool:
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


SHORTEST_STEP_S = 0.55
"""Five refreshes of the instant power of a Hopper card."""


def bursts(one: Measured) -> float:
    """How far power rises above its median; skips where its sensor cannot follow, or the cap cuts it off."""
    step_s, capped = one.value("step_time"), one.value("throttle_power_cap")
    if step_s < SHORTEST_STEP_S:
        pytest.skip(f"INCONCLUSIVE: power is not seen changing within a step of {step_s:.2g} s ({one.scenario.key})")
    if capped > 0.95:
        pytest.skip(f"INCONCLUSIVE: power is at its cap for {100 * capped:.0f} % of the window ({one.scenario.key})")
    return one.value("power_burstiness")


@scenarios(swept(on_h200(GPT3_175B)), **LARGEST)
@pytest.mark.xfail(raises=TrendBroken, strict=False, reason="found once, in one measured step")
def test_larger_ones_are_burstier(measured, charllm):
    """Finding 6, where it can be seen."""
    smallest = charllm.measure(trends.with_work(measured.scenario, microbatch=SIZES[0]))
    trends.at_least("bursts", bursts(measured), bursts(smallest))


@scenarios(
    Rows("tiny-llama", {"cpu:1x2": "dp2"}, microbatch=2, global_batch=8),
    precision="fp32", compile=False, speed=False,
)  # fmt: skip
def test_tiny(measured):
    measured.check()
