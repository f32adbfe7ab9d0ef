"""Runs as campaigns leave them, made through the store's own interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import (
    METRICS,
    Comparable,
    Judgement,
    Measurement,
    MetricVerdict,
    Stack,
    Value,
    Verdict,
)
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, so that the console command's defaults apply."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def h200() -> Machine:
    device = Device(uuid="GPU-1", name="NVIDIA H200", power_limit_w=700.0)
    return Machine(variant="h200-sxm", gpus_per_node=1, devices=(device,))


@pytest.fixture
def cpu() -> Machine:
    return Machine(variant="cpu", gpus_per_node=2, cpu_model="EPYC")


GPU_VALUES = {
    "throughput": 40_772.0, "energy_per_token": 0.01442, "mean_power": 588.4, "core_temp_end": 61.0,
    "hbm_temp_end": 44.0, "margin_min": 26.0, "throttle_sw_thermal": 0.0, "throttle_hw": 0.0,
}  # fmt: skip


def _measurement(key: str, n: int, values: dict[str, float | None], **fields: Any) -> Measurement:
    defaults: dict[str, Any] = {
        "launch_id": f"{key}.timed-{n}",
        "scenario_key": key,
        "started": f"2026-11-29T12:4{n}:00Z",
        "stack": Stack(torch="2.11.0", driver="580.159.04"),
        "device_uuids": ("GPU-1",),
        "start_temp_c": {"GPU-1": 31.0},
        "values": {
            metric: Value(value=value, unit=METRICS[metric].unit, reason=None if value is not None else "not read")
            for metric, value in values.items()
        },
    }
    return Measurement(**(defaults | fields))


@pytest.fixture
def gpu_run(project: Path, h200: Machine) -> Callable[..., RunDirectory]:
    """Three launches of one scenario on an H200, judged. Fields of launches, judgement and run may be changed."""

    def make(
        key: str = KEY,
        verdict: Verdict = Verdict.NO_BASELINE,
        launches: int = 3,
        values: dict[str, float | None] | None = None,
        first: dict[str, Any] | None = None,
        every: dict[str, Any] | None = None,
        judgement: dict[str, Any] | None = None,
        comparable: dict[str, Any] | None = None,
        **run_fields: Any,
    ) -> RunDirectory:
        run = RunDirectory.create(
            project / ".charllm", **({"machine": h200, "tier": "nightly", "arguments": "pytest suites/"} | run_fields)
        )
        for n in range(1, launches + 1):
            fields = (every or {}) | ((first or {}) if n == 1 else {})
            run.save_measurement(_measurement(key, n, GPU_VALUES | (values or {}), **fields))
        metrics = (MetricVerdict(metric="throughput", verdict=verdict, value=40_772.0),)
        told = {"scenario_key": key, "verdict": verdict, "because": f"told {verdict}", "metrics": metrics}
        run.save_judgement(Judgement(**(told | (judgement or {}))))
        here: dict[str, Any] = {
            "variant": "h200-sxm", "shape": "1x1", "power_limit_w": 700.0, "flop_formula": "causal_half",
            "window": "nightly 30 steps 15 s", "measuring": 1,
        }  # fmt: skip
        run.save_comparable(key, Comparable(**(here | (comparable or {}))))
        run.finish()
        return run

    return make


@pytest.fixture
def cpu_run(project: Path, cpu: Machine) -> Callable[..., RunDirectory]:
    """Launches of one scenario on a CPU, one for each Gate A value."""

    def make(costs: Sequence[float], key: str = "llama-5m.dp2.mb2") -> RunDirectory:
        run = RunDirectory.create(project / ".charllm", machine=cpu, tier="smoke")
        for n, cost in enumerate(costs, 1):
            run.save_measurement(
                _measurement(key, n, {"cost_cpu": cost, "throughput": 1376.0}, device_uuids=(), start_temp_c={})
            )
        because = "6 strict checks hold; speed not judged: no baseline for this CPU, recorded"
        run.save_judgement(Judgement(scenario_key=key, verdict=Verdict.PASS, because=because))
        here = Comparable(
            variant="cpu", shape="1x2", cpu_model="EPYC", flop_formula="causal_half", window="smoke", measuring=1
        )
        run.save_comparable(key, here)
        run.finish()
        return run

    return make
