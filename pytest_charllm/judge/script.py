"""What is judged of a script: its step as its launch saw it, without a model to compute from and a calibration beside
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_charllm.judge.agreement import too_far_apart
from pytest_charllm.judge.tolerances import BUSY, Tolerance
from pytest_charllm.records import Measurement, numbers_of
from pytest_charllm.scenario import Script

CPU_TIME = Tolerance(floor=0.10, cap=0.15, prior_sigma=0.025)
"""Of a step on a CPU. Launches of one DDP step scattered by 2.0 to 2.8 % (CoV), on a quiet machine and beside a busy
loop alike: nothing beside the step says how fast the machine was just then, as Gate A's calibration does."""
WALL_TIME = Tolerance(floor=0.15, cap=0.25, prior_sigma=0.035)
"""Throughput, or the step, on a CPU. The same launches scattered by 2.8 to 3.7 % on a quiet machine; beside a busy loop
they read half as fast, so a busy window says nothing."""

CPU_AGREEMENT_COV = 0.05
WALL_AGREEMENT_COV = 0.075
"""Launches on a CPU go on record where their CPU time a step stays within this, or their wall time where a log tells
nothing else: half of what is called later."""


def script_too_far_apart(launches: Sequence[Measurement], script: Script) -> str:
    """Why launches of a script on a CPU are too uncertain for others to be held against them; "" where they are not."""
    if not script.reads_log:
        return too_far_apart(launches, "step_cpu_time", CPU_AGREEMENT_COV)
    busy = [ratio for ratio in numbers_of(launches, "busyness") if ratio >= BUSY]
    if busy:
        return f"machine busy in {len(busy)} of {len(launches)} launches (wall/CPU up to {max(busy):.2f})"
    return too_far_apart(launches, primary(launches), WALL_AGREEMENT_COV)


def primary(launches: Sequence[Measurement]) -> str:
    """What stands for speed: tokens a second where tokens are known, else the step alone."""
    return "throughput" if numbers_of(launches, "throughput") else "step_time"


def script_rules(rules: Mapping[str, Tolerance], launches: Sequence[Measurement], is_cpu: bool) -> dict[str, Tolerance]:
    """The rules of its hardware, in the order in which they are told; without tokens the step takes their place."""
    speed = primary(launches)
    if is_cpu:
        return {"step_cpu_time": CPU_TIME, speed: WALL_TIME}
    if speed == "throughput":
        return dict(rules)
    rest = {metric: rule for metric, rule in rules.items() if metric not in ("throughput", "energy_per_token")}
    return {speed: rules["throughput"], **rest}


def script_required(
    required: Sequence[str], script: Script, launches: Sequence[Measurement], is_cpu: bool
) -> tuple[str, ...]:
    """What a PASS needs evidence for. A log places no step in time, so no sensor can be asked about them."""
    speed = primary(launches)
    if script.reads_log:
        return (speed,)
    if is_cpu:
        return ("step_cpu_time",)
    rest = [metric for metric in required if metric not in ("throughput", "energy_per_token")]
    return tuple(required) if speed == "throughput" else (speed, *rest)
