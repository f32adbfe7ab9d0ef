"""The parts of a traced step over all ranks, and why there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.values import NO_TRACE_ON_CPU, ONLY_TRACED
from pytest_charllm.records import Pass, RankReport
from pytest_charllm.records.breakdown import StepBreakdown
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.scenario import Layout

MS = 1_000_000


def step(compute: int, communication: int, exposed: int, idle: int) -> StepBreakdown:
    """In ms."""
    return StepBreakdown(
        span_ns=(compute + exposed + idle) * MS, compute_ns=compute * MS, communication_ns=communication * MS,
        exposed_ns=exposed * MS, idle_ns=idle * MS,
    )  # fmt: skip


def traced(make: SimpleNamespace, rank: int, *steps: StepBreakdown, **changes: object) -> RankReport:
    plain = {"pass_": Pass.TRACED, "steps": None, "window": None, "breakdown": steps, "untraced_step_s": 0.100}
    return make.report(rank, 2, **(plain | changes))


def test_the_median_step_of_every_rank(make: SimpleNamespace) -> None:
    """Medians of each part by itself would not add up to a step; one hiccup is not what a step takes."""
    calm, hiccup = step(80, 20, 10, 10), step(80, 20, 10, 90)
    ranks = (
        traced(make, 0, hiccup, calm, step(79, 20, 10, 10)),
        traced(make, 1, step(78, 22, 12, 10), step(78, 22, 12, 10)),
    )
    measurement = measure(make.launch(ranks, pass_=Pass.TRACED), None, make.machine(("GPU-0", "GPU-1")))
    seconds = {metric: measurement.number(metric) for metric in TRACED_METRICS}
    assert seconds == pytest.approx(
        {"compute_time": 0.079, "communication_time": 0.021, "exposed_communication": 0.011, "host_gap": 0.010}
    )
    assert measurement.values["step_time"].reason == "the traced pass contributes no step time"
    assert (measurement.checks, measurement.findings) == ((), ())


def test_a_step_that_the_profiler_slows_says_so(make: SimpleNamespace) -> None:
    """A host that is busy writing the trace looks like a host that is slow."""
    ranks = tuple(traced(make, rank, step(80, 0, 0, 40), untraced_step_s=0.100) for rank in range(2))
    (finding,) = measure(make.launch(ranks, pass_=Pass.TRACED), None, make.machine(("GPU-0", "GPU-1"))).findings
    assert finding.text == "the profiler slowed the step by 20 %: gaps of the host are longer for it"


def slow_rank_of(make: SimpleNamespace, *ranks: RankReport, **changes: object) -> list[str]:
    """The texts of the findings, and that what the diagnosis is given agrees with them."""
    launch = make.launch(ranks, pass_=Pass.TRACED, **changes)
    measurement = measure(launch, None, make.machine([f"GPU-{rank.rank}" for rank in ranks]))
    assert not measurement.findings or set(measurement.per_rank) == set(TRACED_METRICS)
    return [finding.text for finding in measurement.findings if finding.kind == "slow-rank"]


def test_a_rank_that_computes_longer_is_named(make: SimpleNamespace) -> None:
    """An all-reduce evens out wall time, so on two GPUs a rank that is 5 % slower has the same step as the other."""
    fast, slow = step(80, 20, 10, 10), step(84, 16, 6, 10)
    (text,) = slow_rank_of(make, traced(make, 0, fast), traced(make, 1, slow))
    assert text == (
        "rank 1 on GPU-1: the others wait for it, with 20.0 ms of communication in a traced step (10.0 ms exposed) "
        "where its own is 16.0 ms (6.0 ms); its compute time +5.0 %"
    )
    assert slow_rank_of(make, traced(make, 0, fast), traced(make, 1, step(82, 18, 8, 10))) == []


def test_waiting_in_turn_is_nobodys_fault(make: SimpleNamespace) -> None:
    """Each rank's own median step may be another one: that in which the other waited was held against that in which it
    did not."""
    waits, waited_for = step(80, 26, 16, 4), step(80, 20, 10, 10)
    first = traced(make, 0, waits, waited_for, waits, waited_for, step(80, 23, 13, 7))
    second = traced(make, 1, waited_for, waits, waited_for, waits, step(80, 23, 13, 7))
    assert slow_rank_of(make, first, second) == []


def test_ranks_that_differ_by_design_are_not_called_slow(make: SimpleNamespace) -> None:
    """The last stage of a pipeline has the head, and an expert that the router likes has more rows."""
    ranks = traced(make, 0, step(80, 20, 10, 10)), traced(make, 1, step(100, 10, 5, 0))
    alike = make.scenario(2)
    staged = replace(alike, layout=Layout(pp=2))
    routed = replace(alike, options=replace(alike.options, real_routing=True))
    found = [len(slow_rank_of(make, *ranks, scenario=scenario)) for scenario in (alike, staged, routed)]
    assert found == [1, 0, 0]


def test_one_rank_without_a_trace_leaves_none(make: SimpleNamespace) -> None:
    """A mean over the ranks that happen to be traced is another number every night."""
    ranks = (traced(make, 0, step(80, 0, 0, 20)), traced(make, 1, notes=("no trace: 0 of 5 steps",)))
    measurement = measure(make.launch(ranks, pass_=Pass.TRACED), None, make.machine(("GPU-0", "GPU-1")))
    assert {measurement.values[metric].reason for metric in TRACED_METRICS} == {"rank 1: no trace: 0 of 5 steps"}


@pytest.mark.parametrize(("cpu", "reason"), [(True, NO_TRACE_ON_CPU), (False, ONLY_TRACED)])
def test_other_passes_say_why_not(make: SimpleNamespace, cpu: bool, reason: str) -> None:
    """A value that is missing without a reason reads like a bug."""
    machine = make.cpu_machine() if cpu else make.machine()
    values = measure(make.launch(cpu=cpu), None, machine).values
    assert {values[metric].reason for metric in TRACED_METRICS} == {reason}
    assert all(values[metric].value is None for metric in TRACED_METRICS)
