"""Training on two gloo ranks: what the parity matrix does not look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_charllm.records import Fault, Pass, RankReport, RankRequest, tier
from pytest_charllm.scenario.traffic import collectives
from pytest_charllm.scenario.traffic.calls import MIB

SLOWED: dict[str, Any] = {"pass_": Pass.TIMED, "layers": 1, "faults": (Fault(name="slowdown", value=0.2, rank=1),)}

MakeRequest = Callable[..., RankRequest]


@pytest.fixture(scope="module")
def answers(train_cases, make_request: MakeRequest) -> Mapping[str, list[RankReport]]:
    """Both ranks' reports, trained one after the other in a single pair of processes."""
    return train_cases(
        2,
        {
            "small-buckets": ("small-buckets", make_request(dp=2, layers=None)),
            "slowed": ("", make_request(dp=2, **SLOWED)),
            "serial": ("", make_request(dp=2, **(SLOWED | {"faults": (Fault(name="lost-overlap"),)}))),
        },
    )


def test_many_buckets_are_as_predicted(answers: Mapping[str, list[RankReport]], make_request: MakeRequest) -> None:
    """The order in which gradients of a real decoder become ready decides how many buckets large models need."""
    expected = collectives(make_request(dp=2, layers=None).scenario, bucket_cap_bytes=MIB)
    assert expected[0].count > 8
    counted = [(each.op, each.axis, each.count, each.bytes) for each in answers["small-buckets"][0].collectives]
    assert counted == list(map(tuple, expected))


def test_a_slowdown_of_one_rank_leaves_the_ranks_in_step(answers: Mapping[str, list[RankReport]]) -> None:
    """Sizing trains extra steps: a rank that skipped them would wait for ever in a collective, or run ahead."""
    clean, slowed = answers["slowed"]
    assert clean.faults == ()
    [fault] = slowed.faults
    assert fault.requested == 0.2
    assert fault.achieved is not None
    assert fault.achieved > 0
    assert clean.warmup == slowed.warmup


def test_lost_overlap_tells_its_reductions(answers: Mapping[str, list[RankReport]]) -> None:
    """The reductions are still there, and the ranks tell how long they took."""
    for report in answers["serial"]:
        [fault] = report.faults
        assert fault.requested is None
        assert fault.achieved is not None
        assert fault.achieved > 0


def test_a_timed_report_is_complete(answers: Mapping[str, list[RankReport]]) -> None:
    """The measuring side needs wall, CPU time and one of each calibration for every step, within the window's edges."""
    steps = tier("smoke", is_cpu=True).window.min_steps
    for report in answers["slowed"]:
        assert report.steps is not None
        assert report.window is not None
        assert len(report.steps.wall_s) == len(report.steps.cpu_s) == steps
        assert [each.kind for each in report.calibration] == ["matmul", "decoder"]
        for each in report.calibration:
            assert len(each.wall_s) == len(each.cpu_s) == steps
        inside_s = sum(report.steps.wall_s) + sum(sum(each.wall_s) for each in report.calibration)
        assert inside_s <= (report.window.end_mono_ns - report.window.begin_mono_ns) / 1e9
        assert report.losses == report.collectives == ()
