"""From the ranks' sweeps to one curve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.values import DEVICE_METRICS
from pytest_charllm.records import METRICS, Launch, MessageTimes, RankReport, Validity
from pytest_charllm.records.curve import CURVE_METRICS
from pytest_charllm.scenario import Collective, CollectiveOp, Layout, Scenario

KIB = 1024


def messages(*latency_s: float, wrong: int = 0) -> tuple[MessageTimes, ...]:
    """1 KiB, 4 KiB, ...: three batches each, the middle one of the given time."""
    return tuple(
        MessageTimes(size=KIB * 4**i, bytes=KIB * 4**i, calls=20, wall_s=(2 * each, each, each / 2), wrong=wrong)
        for i, each in enumerate(latency_s)
    )


def swept(
    make: SimpleNamespace, *ranks: tuple[MessageTimes, ...], op: CollectiveOp = CollectiveOp.ALL_REDUCE
) -> Launch:
    reports: list[RankReport] = [
        make.report(
            rank, len(ranks), messages=each, transport="NCCL 2.27.5: P2P/CUMEM", steps=None, warmup=None,
            tokens_per_step=None, parameters=None,
        )
        for rank, each in enumerate(ranks)
    ]  # fmt: skip
    work = Collective(op=op, largest=KIB * 4 ** (len(ranks[0]) - 1))
    return make.launch(reports, scenario=Scenario(work=work, layout=Layout(dp=len(ranks))))


def measured(make: SimpleNamespace, launch: Launch) -> Any:
    uuids = [f"GPU-{rank}" for rank in range(len(launch.ranks))]
    return measure(launch, make.trace(make.healthy(), uuids=uuids), make.machine(uuids))


def test_a_call_is_over_when_its_slowest_rank_is(make: SimpleNamespace) -> None:
    """The mean over ranks hides the one that everybody waits for in training."""
    measurement = measured(make, swept(make, messages(1e-5, 2e-5), messages(3e-5, 1e-5)))
    assert measurement.validity is Validity.VALID
    assert measurement.number("latency_1kib") == pytest.approx(3e-5)
    assert measurement.number("latency_4kib") == pytest.approx(2e-5)
    assert measurement.number("bus_bandwidth_4kib") == pytest.approx(4 * KIB / 2e-5 / 1e9)
    assert measurement.workload == {"transport": "NCCL 2.27.5: P2P/CUMEM"}


@given(factor=st.sampled_from([(CollectiveOp.ALL_REDUCE, 1.5), (CollectiveOp.ALL_TO_ALL, 0.75), (CollectiveOp.P2P, 1)]))
def test_bandwidth_is_of_the_busiest_link(make: SimpleNamespace, factor: tuple[CollectiveOp, float]) -> None:
    """Bytes over time alone make eight ranks look slower than two on the same links."""
    op, expected = factor
    measurement = measured(make, swept(make, *[messages(1e-3)] * 4, op=op))
    assert measurement.number("bus_bandwidth_1kib") == pytest.approx(expected * KIB / 1e-3 / 1e9)


def over_links(
    make: SimpleNamespace,
    gigabytes: float,
    untimed: int | None = 6,
    op: CollectiveOp = CollectiveOp.ALL_REDUCE,
    ranks: int = 2,
) -> Any:
    """A sweep up to 1 GiB, and what each device's counter says of its whole launch."""
    sizes = [KIB * 4**power for power in range(11)]
    calls = [max(1, min(20, (64 << 20) // size)) for size in sizes]
    times = tuple(
        MessageTimes(size=size, bytes=size, calls=each, wall_s=(1e-3,) * 20, wrong=0, untimed_calls=untimed)
        for size, each in zip(sizes, calls, strict=True)
    )
    launch, uuids = swept(make, *[times] * ranks, op=op), tuple(f"GPU-{rank}" for rank in range(ranks))
    idle = make.trace(make.healthy() | {"link_tx_kib": lambda t: 0.0}, uuids)
    readings = idle.samples[uuids[0]]
    per_s = 1e9 * gigabytes / KIB / ((readings[-1].mono_ns - readings[0].mono_ns) / 1e9)
    return measure(
        launch, make.trace(make.healthy() | {"link_tx_kib": lambda t: per_s * t}, uuids), make.machine(uuids)
    )


@pytest.mark.parametrize(
    ("gigabytes", "untimed", "said"), [(40.590, 6, False), (31.4, 6, True), (60.0, 6, True), (60.0, None, False)]
)
def test_links_carry_the_sweep(make: SimpleNamespace, gigabytes: float, untimed: int | None, said: bool) -> None:
    """By the counters of two H200s an all-reduce's sweep is 40.59 GB, 40.02 on paper; without the calls that are not
    timed it would be 31.4. A record that does not tell of those is held against nothing."""
    measurement = over_links(make, gigabytes, untimed)
    assert measurement.number("link_bytes") == pytest.approx(1e9 * gigabytes, rel=0.01)
    told = [finding.text for finding in measurement.findings if finding.kind == "link-traffic"]
    assert bool(told) is said
    assert not told or f"a device sent {gigabytes:.3g} GB over its links, 40 GB by the collectives on paper" in told[0]


@pytest.mark.parametrize(
    ("op", "gigabytes", "said"),
    [
        (CollectiveOp.ALL_REDUCE, 60.0, False),
        (CollectiveOp.ALL_REDUCE, 20.1, False),
        (CollectiveOp.ALL_REDUCE, 80.0, True),
        (CollectiveOp.REDUCE_SCATTER, 40.0, False),
        (CollectiveOp.ALL_TO_ALL, 40.0, True),
        (CollectiveOp.ALL_TO_ALL, 10.0, True),
    ],
)
def test_a_switch_may_reduce_a_sweep(make: SimpleNamespace, op: CollectiveOp, gigabytes: float, said: bool) -> None:
    """Of 40.02 GB that four ranks go through, a ring sends 60 to reduce all, 30 for the others; a switch takes less of
    the first, and fetches all 40 of what is scattered. What goes from each to each it cannot spare."""
    assert bool([f for f in over_links(make, gigabytes, op=op, ranks=4).findings if f.kind == "link-traffic"]) is said


def test_a_counter_that_ends_early_counts_nothing(make: SimpleNamespace) -> None:
    """From its first reading to its last the sum was half of a sweep's bytes, and told as another path."""
    launch = swept(make, messages(1e-5), messages(1e-5))
    signals = make.healthy() | {"link_tx_kib": lambda t: 1e6 * t if t < 4 else None}
    uuids = ("GPU-0", "GPU-1")
    value = measure(launch, make.trace(signals, uuids), make.machine(uuids)).values["link_bytes"]
    assert value.value is None
    assert "link_tx_kib" in (value.reason or "")


def test_a_curve_has_its_own_sizes_and_sensors_and_no_step(make: SimpleNamespace) -> None:
    """A step time of a collective would be pooled with training's; a size that was not sent is no size without data."""
    measurement = measured(make, swept(make, messages(1e-5), messages(1e-5)))
    assert set(measurement.values) == {"latency_1kib", "bus_bandwidth_1kib", *DEVICE_METRICS}
    assert measurement.number("mean_power") is not None


def test_training_has_no_curve(make: SimpleNamespace) -> None:
    """Every measurement on disk would grow by two reasons a size."""
    assert set(measured(make, make.launch()).values) == set(METRICS) - set(CURVE_METRICS)


def test_a_wrong_element_fails_the_check(make: SimpleNamespace) -> None:
    """A link that corrupts data is not a slow one."""
    good, bad = messages(1e-5), messages(1e-5, wrong=3)
    (check,) = measured(make, swept(make, good, bad)).checks
    assert not check.ok
    assert check.observed == "3 wrong at 1kib on rank 1"
    (check,) = measured(make, swept(make, good, good)).checks
    assert check.ok


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        (((), ()), "rank 0 reports no times of messages"),
        ((messages(1e-5, 1e-5), messages(1e-5)), "rank 1 swept other messages than rank 0"),
    ],
)
def test_sweeps_that_do_not_fit_together_are_invalid(
    make: SimpleNamespace, ranks: tuple[tuple[MessageTimes, ...], ...], reason: str
) -> None:
    """Times of different messages side by side would be read as one curve."""
    launch = swept(make, messages(1e-5, 1e-5), messages(1e-5, 1e-5))
    reports = tuple(replace(report, messages=each) for report, each in zip(launch.ranks, ranks, strict=True))
    measurement = measured(make, replace(launch, ranks=reports))
    assert measurement.validity is Validity.INVALID
    assert measurement.reason == reason
