"""Builders of launches and telemetry: one device, or several, with a signal given as a function of time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import (
    Calibration,
    DeviceLine,
    EndLine,
    Launch,
    Meta,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    SampleLine,
    Stack,
    Status,
    StepSeries,
    Trace,
    Warmup,
    WindowEdges,
    tier,
)
from pytest_charllm.scenario import Layout, Options, Precision, Scenario, Training

GPU_UUID = "GPU-0"
HOST = "node"
T0_NS = 5_000_000_000
Signal = Callable[[float], float | None]


def scenario(dp: int = 1, precision: Precision = Precision.BF16) -> Scenario:
    work = Training(model="llama3-1b", microbatch=2)
    return Scenario(work=work, layout=Layout(dp=dp), options=Options(precision=precision))


def machine(uuids: Sequence[str] = (GPU_UUID,)) -> Machine:
    return Machine(
        variant="h200-sxm",
        gpus_per_node=len(uuids),
        devices=tuple(Device(uuid=uuid, name="NVIDIA H200", power_limit_w=700.0) for uuid in uuids),
    )


def cpu_machine(ranks: int = 2) -> Machine:
    return Machine(variant="cpu", gpus_per_node=ranks, cpu_model="some CPU")


def window_ns(begin_s: float, end_s: float) -> WindowEdges:
    return WindowEdges(begin_mono_ns=T0_NS + round(begin_s * 1e9), end_mono_ns=T0_NS + round(end_s * 1e9))


def report(rank: int = 0, world: int = 1, **changes: Any) -> RankReport:
    """A clean rank: 40 steps of 0.125 s in the window from 2 s to 7 s."""
    plain = RankReport(
        nonce="n",
        rank=rank,
        world_size=world,
        host=HOST,
        pid=100 + rank,
        pass_=Pass.TIMED,
        device=RankDevice(kind="cuda", name="NVIDIA H200", uuid=f"GPU-{rank}"),
        tokens_per_step=8192 * world,
        parameters=1_104_218_112,
        attention_backend="flash",
        software=Stack(),
        phases=Phases(compile_s=12.0),
        steps=StepSeries(wall_s=(0.125,) * 40),
        window=window_ns(2.0, 7.0),
        warmup=Warmup(steps=20, steady=True, reason="steady"),
        peak_memory_bytes=25_000_000_000 + rank,
        compile_cache_cold=True,
    )
    return replace(plain, **changes)


def cpu_report(rank: int = 0, world: int = 2, **changes: Any) -> RankReport:
    """A clean rank on a CPU: steps cost 1.6 calibrations of CPU time and 2 decoders of wall time."""
    plain = {
        "device": RankDevice(kind="cpu", name="some CPU"),
        "steps": StepSeries(wall_s=(0.084,) * 16, cpu_s=(0.080,) * 16),
        "calibration": (
            Calibration(kind="matmul", work=1e9, work_unit="FLOP", wall_s=(0.011,) * 16, cpu_s=(0.010,) * 16),
            Calibration(kind="decoder", work=1e9, work_unit="FLOP", wall_s=(0.042,) * 16, cpu_s=(0.040,) * 16),
        ),
        "peak_memory_bytes": None,
        "compile_cache_cold": None,
    }
    return report(rank, world, **(plain | changes))


def launch(reports: Sequence[RankReport] = (), cpu: bool = False, **changes: Any) -> Launch:
    reports = tuple(reports) or ((cpu_report(0), cpu_report(1)) if cpu else (report(),))
    plain = Launch(
        id="l.timed-1",
        scenario=scenario(len(reports), Precision.FP32 if cpu else Precision.BF16),
        pass_=Pass.TIMED,
        window=tier("smoke", cpu).window,
        status=Status.COMPLETED,
        ranks=reports,
        started="2026-01-01T00:00:00Z",
    )
    return replace(plain, **changes)


def counter(power_w: Signal, refresh_s: float = 0.1) -> Signal:
    """The energy counter of a board drawing `power_w`: joules since time 0, moving only every `refresh_s`."""

    def joules(t: float) -> float:
        ticks = int(t / refresh_s + 1e-6)
        return sum((power_w(i * refresh_s) or 0.0) * refresh_s for i in range(ticks))

    return joules


def trace(
    signals: Mapping[str, Signal], uuids: Sequence[str] = (GPU_UUID,), begin_s: float = 0.0, end_s: float = 9.0,
    period_s: float = 0.1, **line: Any,
) -> Trace:  # fmt: skip
    """Samples of every device from `begin_s` to `end_s`; a signal that gives None could not be read then."""
    count = round((end_s - begin_s) / period_s) + 1
    times_s = [begin_s + i * period_s for i in range(count)]
    ok = dict.fromkeys(signals, "ok")
    return Trace(
        meta=Meta(source="nvml", host=HOST, period_s=period_s, pid=1, mono_ns=T0_NS, wall_s=0.0),
        devices={
            uuid: DeviceLine(**{"uuid": uuid, "name": "NVIDIA H200", "power_limit_w": 700.0, "capabilities": ok} | line)
            for uuid in uuids
        },
        samples={
            uuid: tuple(
                SampleLine(
                    uuid=uuid,
                    mono_ns=T0_NS + round(t * 1e9),
                    latency_ns=1000,
                    values={quantity: signal(t) for quantity, signal in signals.items()},
                )
                for t in times_s
            )
            for uuid in uuids
        },
        end=EndLine(mono_ns=T0_NS + round(end_s * 1e9), samples=count, cpu_s=0.1, reason="stdin closed"),
    )


def healthy(power_w: float = 600.0) -> dict[str, Signal]:
    """All quantities of a GPU under steady load from 1 s on, cool before."""
    return {
        "energy_j": counter(lambda t: power_w),
        "power_instant_w": lambda t: power_w,
        "core_temp_c": lambda t: 30.0 if t < 1.5 else 60.0,
        "hbm_temp_c": lambda t: 28.0 if t < 1.5 else 50.0,
        "margin_c": lambda t: 27.0,
        "sm_clock_mhz": lambda t: 1500.0,
        "throttle_power_cap_ns": lambda t: t * 0.5e9,
        "throttle_sw_thermal_ns": lambda t: 7e9,
        "throttle_hw_thermal_ns": lambda t: 0.0,
        "throttle_hw_brake_ns": lambda t: t * 0.01e9,
    }


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, Any]]:
    """Launches recorded on one H200 (llama3-1b, microbatch 2) by tag: 40 steps each, telemetry of three of them."""
    path = Path(__file__).parents[1] / "data" / "h200_mb2_launches.jsonl"
    return {row["tag"]: row for row in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(
        scenario=scenario, machine=machine, cpu_machine=cpu_machine, window_ns=window_ns, report=report,
        cpu_report=cpu_report, launch=launch, counter=counter, trace=trace, healthy=healthy, T0_NS=T0_NS,
    )  # fmt: skip
