"""Four things that happen: a regression after a driver update, a pass on a CPU, nothing on record, a crash."""

from __future__ import annotations

import pytest

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import (
    TIERS,
    Check,
    Failure,
    Fault,
    FaultApplied,
    Finding,
    Judgement,
    Launch,
    Measurement,
    MetricVerdict,
    Pass,
    RankDevice,
    RankReport,
    Stack,
    Status,
    Value,
    Verdict,
)
from pytest_charllm.records.launch import Phases
from pytest_charllm.records.metrics import METRICS
from pytest_charllm.report.case import Case
from pytest_charllm.scenario import Layout, Scenario, Training

UUID = "GPU-9f2c"
WINDOW = TIERS["nightly", False].window


def measurement(key: str, n: int, uuids: tuple[str, ...] = (UUID,), **values: float | None) -> Measurement:
    return Measurement(
        launch_id=f"{key}.timed-{n}",
        scenario_key=key,
        started=f"2026-11-29T12:45:0{n}Z",
        stack=Stack(torch="2.11.0", driver="590.12"),
        device_uuids=uuids,
        values={
            metric: Value(value=value, unit=METRICS[metric].unit, reason=None if value is not None else "not read")
            for metric, value in values.items()
        },
    )


@pytest.fixture
def h200() -> Machine:
    return Machine(variant="h200-sxm", gpus_per_node=1, devices=(Device(uuid=UUID, name="NVIDIA H200"),))


@pytest.fixture
def cpu() -> Machine:
    return Machine(variant="cpu", gpus_per_node=2, cpu_model="AMD EPYC 7B13")


@pytest.fixture
def regression() -> Case:
    """A new driver: fewer tokens for more joules, confirmed."""
    key = "llama3-1b.mb2"
    metrics = (
        MetricVerdict(
            metric="mean_power", verdict=Verdict.PASS, value=691.2, reference=690.4, change=0.0012, tolerance=0.03,
            would_have_seen=0.0341, reason="noise assumed: 3 launches on record",
        ),
        MetricVerdict(
            metric="throughput", verdict=Verdict.REGRESSION, value=60_710.0, reference=64_051.0, change=-0.0522,
            tolerance=0.015, would_have_seen=0.0191, reason="confirmed -5.1 % (tolerance 1.5 %)",
        ),
        MetricVerdict(
            metric="energy_per_token", verdict=Verdict.REGRESSION, value=0.01139, reference=0.01078, change=0.0566,
            tolerance=0.03, would_have_seen=0.0341, reason="confirmed +5.5 % (tolerance 3.0 %)",
        ),
        MetricVerdict(
            metric="core_temp_end", verdict=Verdict.PASS, value=63.0, reference=62.2, change=0.8, tolerance=5.0,
        ),
        MetricVerdict(
            metric="hbm_temp_end", verdict=Verdict.NOT_JUDGED, value=45.0,
            reason="not comparable: started at 41 degC, on record 33 degC (band 3 degC)",
        ),
    )  # fmt: skip
    judgement = Judgement(
        scenario_key=key,
        verdict=Verdict.REGRESSION,
        because="throughput -5.2 % (tolerance 1.5 %), energy per token +5.7 % (tolerance 3.0 %); confirmed",
        metrics=metrics,
        findings=(Finding(kind="power-capped", text="software power cap in 97 % of the window, on record 96 %"),),
        stack_diff=(("driver", "580.159.04", "590.12"), ("nccl", None, "2.28.9")),
        launches=6,
        confirmed=True,
    )
    measurements = [
        measurement(
            key, n, throughput=60_710.0 + n, energy_per_token=0.01139, mean_power=691.2, core_temp_end=63.0,
            hbm_temp_end=45.0,
        )
        for n in (1, 2)
    ]  # fmt: skip
    return Case(
        key=key,
        verdict="REGRESSION",
        because=judgement.because,
        judgement=judgement,
        measurements=measurements,
    )


@pytest.fixture
def gpu_pass() -> Case:
    key = "gpt3-175b.2L.mb1"
    metrics = (
        MetricVerdict(
            metric="throughput", verdict=Verdict.PASS, value=40_772.0, reference=40_610.0, change=0.004,
            tolerance=0.015, would_have_seen=0.0191,
        ),
        MetricVerdict(metric="mean_power", verdict=Verdict.PASS, value=588.4, reference=588.0, change=0.0007),
        MetricVerdict(metric="energy_per_token", verdict=Verdict.PASS, value=0.01442, reference=0.01440, change=0.001),
        MetricVerdict(metric="core_temp_end", verdict=Verdict.PASS, value=61.2, reference=61.0, change=0.2),
    )  # fmt: skip
    judgement = Judgement(
        scenario_key=key, verdict=Verdict.PASS, because="within tolerance", metrics=metrics, launches=3
    )
    return Case(key=key, verdict="PASS", because=judgement.because, judgement=judgement)


@pytest.fixture
def cpu_pass() -> Case:
    """Judged by Gate A and the strict checks; Gate B kept out by a busy machine."""
    key = "llama-5m.dp2.mb2.fp32"
    metrics = (
        MetricVerdict(
            metric="cost_cpu", verdict=Verdict.PASS, value=7.654, reference=7.63, change=0.0031, tolerance=0.05,
            would_have_seen=0.0742, gate="Gate A",
        ),
        MetricVerdict(
            metric="cost_wall", verdict=Verdict.NOT_JUDGED, reason="machine busy (wall/CPU 1.62)", gate="Gate B"
        ),
    )  # fmt: skip
    checks = tuple(
        Check(name=name, ok=True, expected="4.2", observed="4.2") for name in ("loss parity", "parameters", "FLOPs")
    )
    judgement = Judgement(
        scenario_key=key, verdict=Verdict.PASS, because="within tolerance", metrics=metrics, checks=checks, launches=1
    )
    return Case(
        key=key,
        verdict="PASS",
        because=judgement.because,
        judgement=judgement,
        measurements=[measurement(key, 1, uuids=(), throughput=1376.3, cost_cpu=7.654, cost_wall=2.9)],
    )


@pytest.fixture
def unrecorded() -> Case:
    key = "llama-5m.dp2+fsdp.mb2.fp32"
    judgement = Judgement(
        scenario_key=key,
        verdict=Verdict.PASS,
        because="2 strict checks hold; speed not judged: no baseline for this CPU, recorded",
        metrics=(
            MetricVerdict(
                metric="cost_cpu", verdict=Verdict.NOT_JUDGED, value=11.27, gate="Gate A",
                reason="not judged: no baseline for this CPU, recorded",
            ),
            MetricVerdict(
                metric="cost_wall", verdict=Verdict.NOT_JUDGED, value=3.31, gate="Gate B",
                reason="not judged: no baseline for this CPU, recorded",
            ),
            MetricVerdict(metric="throughput", verdict=Verdict.NOT_JUDGED, value=840.0, reason="informational"),
            MetricVerdict(metric="step_time", verdict=Verdict.NOT_JUDGED, value=0.1523, reason="informational"),
        ),
        checks=(
            Check(name="loss parity", ok=True, expected="4.2", observed="4.2"),
            Check(name="parameters", ok=True, expected="4198656", observed="4198656"),
        ),
        launches=5,
    )  # fmt: skip
    return Case(
        key=key,
        verdict="PASS",
        because=judgement.because,
        judgement=judgement,
        measurements=[measurement(key, n, uuids=(), throughput=840.0, cost_cpu=11.27) for n in range(1, 6)],
    )


def launch(status: Status, failure: Failure | None = None, faults: tuple[Fault, ...] = ()) -> Launch:
    applied = tuple(FaultApplied(name=fault.name, requested=fault.value, achieved=0.102) for fault in faults)
    report = RankReport(
        nonce="n", rank=0, world_size=2, host="node-1", pid=1, pass_=Pass.TIMED, device=RankDevice(kind="cpu", name=""),
        tokens_per_step=512, parameters=1, attention_backend="math", software=Stack(), phases=Phases(), faults=applied,
    )  # fmt: skip
    return Launch(
        id="llama-5m.dp2.mb2.timed-2",
        scenario=Scenario(work=Training(model="llama-5m", microbatch=2), layout=Layout(dp=2)),
        pass_=Pass.TIMED,
        window=WINDOW,
        status=status,
        failure=failure,
        faults=faults,
        ranks=(report,) if faults else (),
    )


@pytest.fixture
def crash() -> Case:
    failure = Failure(
        kind="exception",
        summary="rank 1: RuntimeError: shape '[2, 128]' is invalid for input of size 255, in tokens (data.py:41)",
        rank=1,
        detail=(
            "Traceback (most recent call last):\n"
            '  File "pytest_charllm/engines/native/data.py", line 41, in tokens\n'
            "    return flat.view(2, 128)\n"
            "RuntimeError: shape '[2, 128]' is invalid for input of size 255"
        ),
        log_tail="\n".join(f"[rank1] step {n} loss 4.2" for n in range(25)) + "\n[rank1] " + "x" * 200,
        log_path="runs/1/launches/llama-5m.dp2.mb2/timed-2/logs/1/stderr.log",
    )
    return Case(
        key="llama-5m.dp2.mb2",
        verdict="CRASHED",
        because=failure.summary,
        launches=[launch(Status.COMPLETED), launch(Status.CRASHED, failure)],
    )


@pytest.fixture
def injected() -> Case:
    key = "llama-5m.dp2.mb2"
    metrics = (
        MetricVerdict(
            metric="cost_cpu", verdict=Verdict.REGRESSION, value=8.41, reference=7.63, change=0.1022, tolerance=0.05,
            would_have_seen=0.0742, gate="Gate A", reason="confirmed +10.0 % (tolerance 5.0 %)",
        ),
    )  # fmt: skip
    checks = (
        Check(name="loss parity", ok=False, expected="4.3733", observed="4.4012", limit=1e-6, detail="at step 2 of 5"),
        Check(name="parameters", ok=True, expected="4198656", observed="4198656"),
        Check(name="collective count", ok=False, expected="1", observed="2"),
    )
    judgement = Judgement(
        scenario_key=key, verdict=Verdict.REGRESSION, because="Gate A +10.2 % (tolerance 5.0 %)", metrics=metrics,
        checks=checks, launches=3, confirmed=True,
    )  # fmt: skip
    return Case(
        key=key,
        verdict="REGRESSION",
        because=judgement.because,
        judgement=judgement,
        launches=[launch(Status.COMPLETED), launch(Status.COMPLETED, faults=(Fault(name="slowdown", value=0.10),))],
    )
