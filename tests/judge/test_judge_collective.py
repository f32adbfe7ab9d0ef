"""Curves held against the record: the size that moved is the one that is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.judge.collective import collective_required, collective_rules
from pytest_charllm.judge.policy import Policy
from pytest_charllm.records import METRICS, Check, Measurement, NeedMore, Value, Verdict, tier
from pytest_charllm.records.curve import CURVE_METRICS, bus_bandwidth, judged, latency
from pytest_charllm.scenario import Collective, CollectiveOp, Layout, Scenario
from pytest_charllm.scenario.collective import sizes_of

WORK = Collective(op=CollectiveOp.ALL_REDUCE)
SCENARIO = Scenario(work=WORK, layout=Layout(dp=2))
GOOD = Check(name="results", ok=True, expected="e", observed="e")
BAD = replace(GOOD, ok=False, observed="3 wrong at 1kib on rank 1")


def curve(make: SimpleNamespace, check: Check = GOOD, is_cpu: bool = False, **changes: float) -> Measurement:
    numbers = {metric: 1e-5 if METRICS[metric].unit == "s" else 300.0 for metric in CURVE_METRICS} | changes
    values = {metric: Value(value=number, unit=METRICS[metric].unit) for metric, number in numbers.items()}
    plain = make.cpu() if is_cpu else make.gpu()
    return replace(plain, values=values, checks=(check,), scenario_key=SCENARIO.key)


def decide(make: SimpleNamespace, *rounds: list[Measurement], on_record: bool = True, is_cpu: bool = False) -> Any:
    record = make.baseline([curve(make)] * 3) if on_record else None
    policy = Policy(tier("nightly", is_cpu), is_cpu=is_cpu)
    return policy.decide(SCENARIO, record, make.comparable(is_cpu), rounds, None, speed=not is_cpu, first_launches=1)


def test_an_unchanged_curve_passes(make: SimpleNamespace) -> None:
    """Eleven metrics, each with its own chance to cry wolf."""
    judgement = decide(make, [curve(make)])
    assert judgement.verdict is Verdict.PASS
    assert {row.metric for row in judgement.metrics if row.verdict is Verdict.PASS} == set(collective_rules(WORK))


@pytest.mark.parametrize(
    ("metric", "worse"),
    [("latency_4kib", 1.3e-5), ("bus_bandwidth_1mib", 120.0), ("bus_bandwidth_1gib", 270.0)],
)
def test_one_size_that_moved_is_a_regression_by_its_name(make: SimpleNamespace, metric: str, worse: float) -> None:
    """NCCL 2.29 lost 10 us below 32 KiB alone, NCCL 2.30 half the bandwidth at 1 MiB alone: the peak hides both."""
    moved = curve(make, **{metric: worse})
    assert isinstance(decide(make, [moved]), NeedMore)
    judgement = decide(make, [moved], [moved, moved, moved])
    assert judgement.verdict is Verdict.REGRESSION
    assert [row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION] == [metric]
    assert metric.replace("_", " ") in judgement.because


def test_a_size_is_judged_once() -> None:
    """Latency and bandwidth of one size are one time: judged by both, one change would be told as two."""
    assert len(collective_rules(WORK)) == len(CURVE_METRICS) // 2


@pytest.mark.parametrize(
    ("metric", "values", "verdict"),
    [
        ("latency_4kib", (2.2e-5, 2.9e-5, 4.5e-5), Verdict.PASS),
        ("bus_bandwidth_1gib", (300.0, 240.0, 380.0), Verdict.INCONCLUSIVE),
    ],
)
def test_what_waits_for_its_host_withholds_nothing(
    make: SimpleNamespace, metric: str, values: tuple[float, ...], verdict: Verdict
) -> None:
    """Two H200s: small messages of three launches were 20 to 60 % apart, which made every sweep INCONCLUSIVE."""
    record = make.baseline([curve(make, **{metric: value}) for value in values])
    night = [curve(make, **{metric: values[0]})]
    policy = Policy(tier("nightly", False), is_cpu=False)
    judgement: Any = policy.decide(SCENARIO, record, make.comparable(), [night], None, first_launches=1)
    assert judgement.verdict is verdict
    assert "unreliable" in [finding.kind for finding in judgement.findings]


WAITING = [size for size in sizes_of(WORK) if size <= 4 << 20]
SMALL = [judged(size) for size in WAITING]
P2P_S = (
    (71.6, 76.2, 64.2, 71.1, 74.1, 68.9, 74.2),
    (82.8, 88.9, 91.7, 79.9, 83.4, 77.2, 87.1),
    (70.0, 50.7, 46.1, 47.1, 78.7, 79.6, 85.5),
)
"""Microseconds of a send and receive of 1 KiB to 4 MiB between two H200s, launch by launch."""


def small(make: SimpleNamespace, microseconds: tuple[float, ...]) -> Measurement:
    """So long for messages of 1 KiB to 4 MiB, a millisecond for larger ones."""
    times_us = dict.fromkeys(sizes_of(WORK), 1000.0) | dict(zip(WAITING, microseconds, strict=True))
    changes = {latency(size): 1e-6 * us for size, us in times_us.items()}
    changes |= {bus_bandwidth(size): size / us / 1e3 for size, us in times_us.items()}
    return curve(make, **changes)


def test_one_size_is_no_calmer_than_its_neighbours(make: SimpleNamespace) -> None:
    """p2p on two H200s: of seven sizes that wait for the host three launches agreed at 1 KiB, by luck. On other cards,
    with nothing changed, it was red: +30.0 %, confirmed +29.9 %."""
    record = make.baseline([small(make, launch) for launch in P2P_S])
    policy = Policy(tier("nightly", False), is_cpu=False)
    nights = [small(make, (93.1, 81.0, 91.6, 91.2, 73.8, 89.5, 89.4))]
    judgement: Any = policy.decide(SCENARIO, record, make.comparable(), [nights], None, first_launches=1)
    assert judgement.verdict is Verdict.PASS
    assert {row.metric for row in judgement.metrics if row.verdict is Verdict.INCONCLUSIVE} == set(SMALL)


def test_a_calm_host_still_shows_what_it_lost(make: SimpleNamespace) -> None:
    """Where launches agree at every size, 10 us more of 33 are red (NCCL 2.29, below 32 KiB)."""
    calm = [tuple(us * (1 + 0.01 * n) for us in (33.0, 33.4, 32.8, 33.1, 33.6, 35.0, 37.0)) for n in (-1, 0, 1)]
    record = make.baseline([small(make, launch) for launch in calm])
    policy = Policy(tier("nightly", False), is_cpu=False)
    slow = [small(make, (43.0, 43.4, 42.8, 33.1, 33.6, 35.0, 37.0))]
    judgement: Any = policy.decide(SCENARIO, record, make.comparable(), [slow, slow * 3], None, first_launches=1)
    red = {row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION}
    assert red == {"latency_1kib", "latency_4kib", "latency_16kib"}


def test_what_waits_for_its_links_keeps_its_own_spread(make: SimpleNamespace) -> None:
    """Over PCIe 256 KiB wait for the link already: with the host's spread lent to them, half of their bandwidth could
    go without a word."""
    record = make.baseline([small(make, (*launch[:4], 150.0, 300.0, 900.0)) for launch in P2P_S])
    policy = Policy(tier("nightly", False), is_cpu=False)
    slow = [small(make, (*P2P_S[0][:4], 150.0, 600.0, 900.0))]
    judgement: Any = policy.decide(SCENARIO, record, make.comparable(), [slow, slow * 3], None, first_launches=1)
    red = {row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION}
    assert red == {"bus_bandwidth_1mib"}


def test_what_a_short_sweep_requires() -> None:
    """Without any large message its largest one has to be seen."""
    assert collective_required(WORK) == ("bus_bandwidth_64mib", "bus_bandwidth_256mib", "bus_bandwidth_1gib")
    assert collective_required(replace(WORK, largest=4 << 20)) == ("bus_bandwidth_4mib",)


def test_a_wrong_result_is_red_at_once(make: SimpleNamespace) -> None:
    """Fast and wrong is no improvement; and on a GPU no diagnostic pass would say so."""
    judgement = decide(make, [curve(make, BAD)], on_record=True)
    assert judgement.verdict is Verdict.REGRESSION
    assert "3 wrong at 1kib on rank 1" in judgement.because


def test_a_gpu_without_a_record_has_no_baseline(make: SimpleNamespace) -> None:
    """A strict check that holds says nothing about speed."""
    assert decide(make, [curve(make)], on_record=False).verdict is Verdict.NO_BASELINE


@pytest.mark.parametrize(("check", "verdict"), [(GOOD, Verdict.PASS), (BAD, Verdict.REGRESSION)])
def test_a_cpu_checks_and_records(make: SimpleNamespace, check: Check, verdict: Verdict) -> None:
    """gloo's threads share their cores with everybody: a gate on its times would fire on a neighbour's build."""
    judgement = decide(make, [curve(make, check, is_cpu=True)], on_record=False, is_cpu=True)
    assert judgement.verdict is verdict
    if verdict is Verdict.PASS:
        assert judgement.because == "1 strict check holds; speed not judged: no tolerance for it on a CPU, recorded"
        assert {row.metric for row in judgement.metrics} == set(CURVE_METRICS)
