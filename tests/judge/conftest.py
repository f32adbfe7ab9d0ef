"""Builders of measurements and baselines: a healthy GPU or CPU launch, changed where a test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.policy import Policy
from pytest_charllm.records import (
    METRICS,
    Baseline,
    BaselineSample,
    BaselineStack,
    Check,
    Measurement,
    Stack,
    Value,
    tier,
)
from pytest_charllm.scenario import Layout, Scenario, Training

SCENARIO = Scenario(work=Training(model="llama3-1b", microbatch=2))
CPU_SCENARIO = Scenario(work=Training(model="llama3-1b", microbatch=2, layers=1), layout=Layout(dp=2))
GPU_MACHINE = Machine(
    variant="h200-sxm", gpus_per_node=1, devices=(Device(uuid="GPU-0", name="NVIDIA H200", power_limit_w=700.0),)
)
CPU_MACHINE = Machine(variant="cpu", gpus_per_node=2, cpu_model="some CPU")

GPU_VALUES = {
    "throughput": 64000.0,
    "step_time": 0.128,
    "energy_per_token": 0.0109,
    "mean_power": 690.0,
    "peak_power": 800.0,
    "core_temp_end": 62.0,
    "hbm_temp_end": 52.0,
    "heating": 0.05,
    "core_temp_spread": 3.0,
    "margin_min": 25.0,
    "throttle_power_cap": 0.98,
    "throttle_sw_thermal": 0.0,
    "throttle_hw": 0.0,
    "peak_memory": 25e9,
    "compile_time": 12.0,
    "mfu": 0.45,
}
CPU_VALUES = {"throughput": 900.0, "step_time": 0.093, "cost_cpu": 8.0, "cost_wall": 2.2, "busyness": 1.05}
CHECK_NAMES = ("loss parity", "FLOPs")


def _measurement(plain: Mapping[str, float], changes: Mapping[str, float | None], **fields: Any) -> Measurement:
    numbers: dict[str, float | None] = {**plain, **changes}
    values = {
        metric: Value(value=number, unit=METRICS[metric].unit, reason="not read" if number is None else None)
        for metric, number in numbers.items()
    }
    described = {
        "launch_id": "l",
        "scenario_key": SCENARIO.key,
        "started": "",
        "stack": Stack(torch="2.11.0", driver="580"),
    }
    return Measurement(values=values, **(described | fields))


def gpu(
    changes: Mapping[str, float | None] = {}, uuid: str = "GPU-0", start_c: float = 30.0, **fields: Any
) -> Measurement:
    return _measurement(
        GPU_VALUES,
        changes,
        **({"device_uuids": (uuid,), "start_temp_c": {uuid: start_c}, "power_limit_w": 700.0} | fields),
    )


def cpu(changes: Mapping[str, float | None] = {}, **fields: Any) -> Measurement:
    return _measurement(CPU_VALUES, changes, **({"device_uuids": ()} | fields))


def diagnostic(failed: Sequence[str] = ()) -> Measurement:
    checks = tuple(
        Check(name=name, ok=name not in failed, expected="1", observed="2" if name in failed else "1")
        for name in CHECK_NAMES
    )
    return replace(cpu(), values={}, checks=checks)


def baseline(
    launches: Sequence[Measurement], is_cpu: bool = False, tier_name: str = "nightly", **stack: Any
) -> Baseline:
    described = {
        "stack": Stack(torch="2.11.0", driver="575"),
        "run_id": "r",
        "accepted": "",
        "accepted_by": "somebody",
        "because": "first on record",
        "host": "node",
        "samples": tuple(
            BaselineSample(
                launch_id=launch.launch_id,
                started="",
                device_uuids=launch.device_uuids,
                values={metric: value.value for metric, value in launch.values.items() if value.value is not None},
                start_temp_c=launch.start_temp_c,
            )
            for launch in launches
        ),
    }
    return Baseline(
        scenario_key=SCENARIO.key,
        comparable=comparable(is_cpu, tier_name),
        stacks=(BaselineStack(**(described | stack)),),
    )


def record(throughput: Sequence[Sequence[float]], uuids: Sequence[str] = ("GPU-0",), **changes: Any) -> Baseline:
    """One accepted run a row, with these tokens/s, on these cards in turn; `changes` of the other metrics."""
    stacks = tuple(
        replace(
            baseline([gpu({"throughput": value, **changes}, uuid=uuids[i % len(uuids)]) for value in row]).reference,
            run_id=f"run-{i}",
        )
        for i, row in enumerate(throughput)
    )
    return replace(baseline([gpu()]), stacks=stacks)


def comparable(is_cpu: bool = False, tier_name: str = "nightly") -> Any:
    return comparable_of(CPU_MACHINE if is_cpu else GPU_MACHINE, tier(tier_name, is_cpu).window)


def decide(
    rounds: Sequence[Sequence[Measurement]], record: Baseline | None, tier_name: str = "nightly", **options: Any
) -> Any:
    """On a GPU."""
    plain = {"comparable": comparable(tier_name=tier_name), "aside": None}
    return Policy(tier(tier_name, False), is_cpu=False).decide(SCENARIO, record, rounds=rounds, **(plain | options))


def decide_cpu(rounds: Sequence[Sequence[Measurement]], record: Baseline | None, **options: Any) -> Any:
    plain = {"comparable": comparable(is_cpu=True), "aside": diagnostic()}
    return Policy(tier("smoke", True), is_cpu=True).decide(CPU_SCENARIO, record, rounds=rounds, **(plain | options))


def row(judgement: Any, metric: str) -> Any:
    return next(row for row in judgement.metrics if row.metric == metric)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(
        gpu=gpu, cpu=cpu, diagnostic=diagnostic, baseline=baseline, record=record, comparable=comparable, decide=decide,
        decide_cpu=decide_cpu, row=row, GPU_VALUES=GPU_VALUES, CPU_VALUES=CPU_VALUES, GPU_MACHINE=GPU_MACHINE,
        CPU_MACHINE=CPU_MACHINE,
    )  # fmt: skip
