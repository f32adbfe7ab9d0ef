from __future__ import annotations

import pytest

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import Baseline, BaselineSample, BaselineStack, Comparable, Stack


@pytest.fixture
def h200() -> Machine:
    device = Device(uuid="GPU-1", name="NVIDIA H200", power_limit_w=700.0)
    return Machine(variant="h200-sxm", gpus_per_node=1, devices=(device,), driver="580.159.04")


@pytest.fixture
def cpu() -> Machine:
    return Machine(variant="cpu", gpus_per_node=2, cpu_model="EPYC")


@pytest.fixture
def baseline() -> Baseline:
    """Two stacks of three launches each, as an accepted re-run under a new driver leaves it."""
    samples = tuple(
        BaselineSample(
            launch_id=f"llama3-1b.mb1.timed-{n}",
            started=f"2026-11-29T12:45:{n:02d}Z",
            device_uuids=("GPU-1",),
            values={"throughput": 40_772.25 + n, "mean_power": 588.0},
            start_temp_c={"GPU-1": 31.5},
        )
        for n in (1, 2, 3)
    )
    stacks = tuple(
        BaselineStack(
            stack=Stack(torch="2.11.0", driver=driver),
            run_id=f"run-{driver}",
            accepted="2026-11-29T13:00:00Z",
            accepted_by="ada",
            because="first of its kind",
            host="node-1",
            samples=samples,
        )
        for driver in ("580.159.04", "590.1")
    )
    comparable = Comparable(
        variant="h200-sxm", shape="1x1", power_limit_w=700.0, flop_formula="causal_half", window="smoke", measuring=1
    )
    return Baseline(scenario_key="llama3-1b.mb1", comparable=comparable, stacks=stacks)
