"""What is kept for a diagnosis: ranks apart, calibration kernels, the fingerprint of the work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import Calibration, Collective, Pass, Validity

KERNELS = (
    Calibration(kind="matmul", work=1.0, work_unit="FLOP", wall_s=(0.0014, 0.0015, 0.0020)),
    Calibration(kind="copy", work=1.0, work_unit="byte", wall_s=(0.0005,) * 3),
)


def test_two_gpus_are_told_apart(make: SimpleNamespace) -> None:
    """One slow card of eight disappears in a mean over devices."""
    slow = replace(KERNELS[0], wall_s=(0.0018,) * 3)
    reports = (make.report(0, 2, calibration=KERNELS), make.report(1, 2, calibration=(slow, KERNELS[1])))
    uuids = ("GPU-0", "GPU-1")
    measurement = measure(make.launch(reports), make.trace(make.healthy(), uuids), make.machine(uuids))
    assert measurement.per_rank["matmul_time"] == (0.0015, 0.0018)
    assert measurement.per_rank["sm_clock"] == pytest.approx((1500.0, 1500.0))
    assert "all_reduce_time" not in measurement.per_rank
    assert measurement.number("matmul_time") == 0.0018
    assert measurement.values["all_reduce_time"].reason == "no all-reduce calibration"
    assert measurement.window_s == 5.0


def test_cpu_ranks_by_their_own_gate(make: SimpleNamespace) -> None:
    """On a CPU waiting evens out wall time; CPU time against a rank's own calibration does not."""
    measurement = measure(make.launch(cpu=True), None, make.cpu_machine())
    assert measurement.per_rank["cost_cpu"] == pytest.approx((1.6, 1.6))
    assert measurement.number("matmul_time") == 0.010


def test_fingerprint_of_the_work(make: SimpleNamespace) -> None:
    """What is missing is absent, so that an old record is never taken for other work."""
    timed = measure(make.launch(), make.trace(make.healthy()), make.machine())
    assert timed.workload["parameters"] == "1,104,218,112"
    assert timed.workload["attention"] == "flash"
    assert timed.workload["tokens/step"] == "8,192"
    assert not {"experts", "collectives"} & set(timed.workload)
    assert timed.per_rank == {}
    counted = (Collective(op="all-reduce", axis="dp", count=3, bytes=4096),)
    diagnostic = make.launch((make.report(collectives=counted, pass_=Pass.DIAGNOSTIC),), pass_=Pass.DIAGNOSTIC)
    assert measure(diagnostic, None, make.machine()).workload["collectives"] == "all-reduce on dp: 3 of 4,096 bytes"


def test_an_invalid_launch_has_none(make: SimpleNamespace) -> None:
    """Half of the ranks is no workload."""
    measurement = measure(make.launch((make.report(0, 2), make.report(1, 2)), ranks=()), None, make.machine())
    assert measurement.validity is Validity.INVALID
    assert (measurement.workload, measurement.per_rank, measurement.window_s) == ({}, {}, None)
