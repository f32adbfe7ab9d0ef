"""Step times of several ranks, the two CPU gates, and what looks odd about a series."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.measure.steps import (
    busyness,
    cost_cpu,
    cost_wall,
    drift_slope,
    slowest_steps_s,
    step_findings,
    unusable,
)
from pytest_charllm.records import Calibration, StepSeries, Warmup


def kinds(reports: list, is_cpu: bool = False) -> set[str]:
    return {finding.kind for finding in step_findings(reports, is_cpu)}


def test_a_step_takes_as_long_as_its_slowest_rank(make: SimpleNamespace) -> None:
    """The mean over ranks would hide a rank that all others wait for."""
    reports = [
        make.report(0, 2, steps=StepSeries(wall_s=(1.0, 3.0))),
        make.report(1, 2, steps=StepSeries(wall_s=(2.0, 1.0))),
    ]
    assert slowest_steps_s(reports) == (2.0, 3.0)


def test_ranks_with_other_numbers_of_steps_do_not_fit(make: SimpleNamespace) -> None:
    """Zipping to the shortest would pair different steps with each other."""
    reports = [make.report(0, 2), make.report(1, 2, steps=StepSeries(wall_s=(0.1,) * 39))]
    assert unusable(reports) == "ranks report different numbers of steps (rank 0: 40, rank 1: 39)"
    assert unusable([make.report(steps=None)]) == "rank 0 reports no steps"
    assert unusable([make.report()]) is None


@pytest.mark.parametrize("step_s", [math.nan, math.inf, 1e308, -3.0, 0.0])
def test_a_step_that_cannot_be_true_spoils_its_launch(make: SimpleNamespace, step_s: float) -> None:
    """A clock that ran back for one step of forty moved no median, and nobody heard of it."""
    wall_s = (*(0.1,) * 7, step_s, *(0.1,) * 32)
    reports = [make.report(0, 2), make.report(1, 2, steps=StepSeries(wall_s=wall_s))]
    told = f"rank 1: step 7 took {step_s:g} s of wall time: not a number, or a clock that was set"
    assert unusable(reports) == told
    cpu = unusable([make.report(steps=StepSeries(wall_s=(0.1,) * 40, cpu_s=wall_s))])
    assert (cpu is None) is (step_s == 0.0)  # a step that waits takes no CPU time


def test_gate_a_is_the_mean_of_the_ranks_medians(make: SimpleNamespace) -> None:
    """A slow rank has to count, a single slow step must not."""
    gust = (0.080,) * 15 + (0.400,)
    reports = [
        make.cpu_report(0, steps=StepSeries(wall_s=gust, cpu_s=gust)),
        make.cpu_report(1, steps=StepSeries(wall_s=(0.168,) * 16, cpu_s=(0.120,) * 16)),
    ]
    assert cost_cpu(reports).value == pytest.approx((1.6 + 2.4) / 2)


def test_gate_b_and_busyness_are_ratios_of_sums(make: SimpleNamespace) -> None:
    """Waiting moves from one step to the next, so only sums of wall time hold still."""
    reports = [make.cpu_report(0), make.cpu_report(1, steps=StepSeries(wall_s=(0.168,) * 16, cpu_s=(0.120,) * 16))]
    assert cost_wall(reports).value == pytest.approx((0.084 + 0.168) / 0.084)
    assert busyness(reports).value == pytest.approx((0.084 + 0.168) / 0.200)


@settings(deadline=None)
@given(speed=st.floats(0.1, 10.0))
def test_gates_do_not_depend_on_how_fast_the_machine_is(make: SimpleNamespace, speed: float) -> None:
    """A machine that is slower at everything has not regressed."""

    def scaled(rank: int) -> object:
        plain = make.cpu_report(rank)
        return make.cpu_report(
            rank,
            steps=StepSeries(
                wall_s=tuple(s * speed for s in plain.steps.wall_s), cpu_s=tuple(s * speed for s in plain.steps.cpu_s)
            ),
            calibration=tuple(
                Calibration(
                    kind=c.kind, work=c.work, work_unit=c.work_unit,
                    wall_s=tuple(s * speed for s in c.wall_s), cpu_s=tuple(s * speed for s in c.cpu_s),
                )
                for c in plain.calibration
            ),
        )  # fmt: skip

    reports = [scaled(0), scaled(1)]
    assert cost_cpu(reports).value == pytest.approx(1.6)
    assert cost_wall(reports).value == pytest.approx(2.0)
    assert busyness(reports).value == pytest.approx(1.05)


def test_gate_without_calibration_is_missing(make: SimpleNamespace) -> None:
    """An empty or shorter calibration must become a reason, not an infinite cost or a wrong pairing."""
    short = [msgspec.structs.replace(c, cpu_s=c.cpu_s[1:]) for c in make.cpu_report(0).calibration]
    assert "rank 0" in (cost_cpu([make.cpu_report(0, calibration=tuple(short))]).reason or "")
    reports = [make.cpu_report(0), make.cpu_report(1, calibration=())]
    assert cost_cpu(reports).value is None
    assert "rank 1" in (cost_cpu(reports).reason or "")
    assert cost_wall(reports).value is None
    assert busyness([make.report()]).value is None


def test_a_clean_launch_has_no_findings(make: SimpleNamespace) -> None:
    """A finding on every launch is a line that nobody reads."""
    assert kinds([make.report()]) == set()
    assert kinds([make.cpu_report(0), make.cpu_report(1)], is_cpu=True) == set()


def test_not_steady_is_told_with_its_reason(make: SimpleNamespace) -> None:
    """A window opened in the middle of warm-up looks like a slow framework."""
    (finding,) = step_findings([make.report(warmup=Warmup(steps=200, steady=False, reason="groups 4 % apart"))], False)
    assert finding.kind == "not-steady"
    assert "groups 4 % apart" in finding.text


@pytest.mark.parametrize(("second", "drifts"), [(0.1262, False), (0.1275, True), (0.1225, True)])
def test_drift_between_the_halves(make: SimpleNamespace, second: float, drifts: bool) -> None:
    """A card still heating up slows within the window; its median is of no steady state."""
    series = StepSeries(wall_s=(0.125,) * 20 + (second,) * 20)
    assert ("drifting" in kinds([make.report(steps=series)])) is drifts


def drift_told(make: SimpleNamespace, steps_s: list[float]) -> str:
    (text,) = [f.text for f in step_findings([make.report(steps=StepSeries(wall_s=tuple(steps_s)))], False)]
    return text


def test_a_slope_a_minute_needs_a_minute(make: SimpleNamespace) -> None:
    """Windows of a second were said to drift by +2399.1 % a minute."""
    steady = [1 + 0.001 * n for n in range(60)]
    halves = "median step of the second half +3.0 % against the first"
    assert drift_told(make, [0.01 * step_s for step_s in steady]) == halves
    assert drift_told(make, steady) == f"{halves}, +5.7 % a minute"


def test_a_jump_is_no_slope(make: SimpleNamespace) -> None:
    """``+6.5 % against the first, -43.3 % a minute``: each half gets faster, with a jump between them."""
    falling = [1 - 0.004 * n for n in range(40)]
    jumped = falling + [1.03 * step_s for step_s in falling]
    told = "median step of the second half +3.0 % against the first, by a jump and not steadily"
    assert drift_slope(jumped) < 0
    assert drift_told(make, jumped) == told


def test_slope_is_a_share_a_minute_and_robust() -> None:
    """A step that gets 1 % longer in every minute, with a stall in it that is none of the slope."""
    steps_s, elapsed_s = [], 0.0
    while elapsed_s < 120:
        steps_s.append(0.5 * (1 + 0.01 * elapsed_s / 60))
        elapsed_s += steps_s[-1]
    steps_s[7] = 30.0
    assert drift_slope(steps_s) == pytest.approx(0.01, rel=0.1)
    assert drift_slope([0.5] * 4) == 0.0


@pytest.mark.parametrize(("after", "kinds_"), [(100_350, set()), (101_000, {"growing"}), (90_000, set())])
def test_objects_that_stay_are_told(make: SimpleNamespace, after: int, kinds_: set[str]) -> None:
    """A list of graphs that grows with every step costs nothing in forty of them, and the run after a day."""
    steps = StepSeries(wall_s=(0.125,) * 40)
    assert kinds([make.report(steps=steps, objects=(100_000, after))]) == kinds_


def test_bimodal_steps_are_told(make: SimpleNamespace) -> None:
    """A stall in every tenth step leaves the median untouched."""
    series = StepSeries(wall_s=(0.125,) * 9 + (0.2,))
    repeated = StepSeries(wall_s=series.wall_s * 4)
    assert kinds([make.report(steps=repeated)]) == {"bimodal"}


def test_slow_rank_is_named_with_its_device(make: SimpleNamespace) -> None:
    """One bad GPU has to be reported as hardware, not as a slow framework."""
    times = [0.1250, 0.1251, 0.1249, 0.1252, 0.1248, 0.1250, 0.1251, 0.1350]
    reports = [make.report(i, 8, steps=StepSeries(wall_s=(t,) * 10)) for i, t in enumerate(times)]
    (finding,) = step_findings(reports, is_cpu=False)
    assert finding.kind == "slow-rank"
    assert "rank 7 on GPU-7" in finding.text
    assert "+8.0 %" in finding.text


@settings(deadline=None)
@given(times=st.lists(st.floats(0.1249, 0.1251), min_size=2, max_size=8))
def test_equal_ranks_are_never_called_slow(make: SimpleNamespace, times: list[float]) -> None:
    """With almost no spread any difference is many sigmas: it must also be large enough to matter."""
    reports = [make.report(i, len(times), steps=StepSeries(wall_s=(t,) * 10)) for i, t in enumerate(times)]
    assert "slow-rank" not in kinds(reports)
