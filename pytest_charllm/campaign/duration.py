"""How long a run will take, before it starts: an estimate to plan a night by, never a measurement.

On a GPU a step takes its executed FLOPs at half of the peak: one H200 did those of five scenarios at 46 to 63 % of it,
counted as `scenario.flops` does (`docs/findings_h200.md` has their tokens per second). Waiting in pipelines is added by
its formula, waiting for other ranks is not known. What a launch takes beside its steps is what it took there: 20 s, or
30 with a cold compiler; three launches each of two scenarios were over after 260 s, of three after 390 s. A sweep of
collectives adds seconds to that, which are not counted. On a CPU launches of the tiny models take about as long as each
other; simulated GPUs are one with the long windows of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_charllm.campaign.settings import Planned
from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import Hardware
from pytest_charllm.records import Tier, WindowRule
from pytest_charllm.records.tiers import window_of
from pytest_charllm.scenario import Collective, Scenario, Training
from pytest_charllm.scenario.bubble import bubble_fraction
from pytest_charllm.scenario.flops import flops_per_token, hardware_flops_per_step
from pytest_charllm.scenario.models import tokens_per_step

SHARE_OF_PEAK = 0.5
START_S = 20.0
COMPILE_S = 10.0
"""On top, in the first launch of a round."""

CPU_TIMED_S = 10.0
CPU_DIAGNOSTIC_S = 7.0
CPU_COMPILE_S = 24.0
"""Of launches of the tiny models on two quiet cores of an AMD EPYC."""


def duration_s(
    planned: Planned, hardware: Hardware, tier: Tier, launches: int, *, traces: bool = False
) -> float | None:
    """Seconds of the first round of a feasible scenario, which has so many timed `launches`; on a CPU only where its
    speed is judged, as it always is on simulated GPUs. `traces`: a launch under the profiler follows, where the tier
    has those. None of a script, and of a collective on a CPU.
    """
    scenario, on_gpu = planned.scenario, hardware.peak_bf16_flops is not None
    if isinstance(scenario.work, Collective) and on_gpu:
        return launches * START_S
    if not isinstance(scenario.work, Training):
        return None
    window = window_of(tier.window, scenario)
    if hardware.peak_bf16_flops is None:
        diagnostic_s = CPU_DIAGNOSTIC_S + CPU_COMPILE_S * scenario.options.compile if tier.diagnostic else 0.0
        timed_s = CPU_TIMED_S + window.warmup_seconds + window.min_seconds
        return diagnostic_s + (launches * timed_s if planned.speed or not tier.diagnostic else 0.0)
    one_s = step_s(scenario, hardware.peak_bf16_flops)
    warm_s = START_S + _warming_s(one_s, window)
    traced_s = warm_s if tier.traced and traces else 0.0
    window_s = max(window.min_steps * one_s, window.min_seconds)
    return launches * (warm_s + window_s) + traced_s + COMPILE_S * scenario.options.compile


def step_s(scenario: Scenario, peak_flops: float) -> float:
    """Seconds of a step by the estimate above. fp8 is taken as bf16: how much it brings is what a suite is to find."""
    try:
        flops = float(hardware_flops_per_step(scenario))
    except BadInput:  # they follow the routing
        flops = flops_per_token(scenario) * tokens_per_step(scenario)
    busy_s = flops / (SHARE_OF_PEAK * peak_flops * scenario.layout.world)
    return busy_s / (1 - bubble_fraction(scenario.layout, scenario.accumulation))


def total_s(durations_s: Iterable[float | None]) -> float:
    """Of those that are known."""
    return sum(each for each in durations_s if each is not None)


def _warming_s(step_s: float, window: WindowRule) -> float:
    """Until both its steps and its seconds are over."""
    return max(window.warmup_steps * step_s, window.warmup_seconds)
