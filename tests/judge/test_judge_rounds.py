"""Sequential stopping: launches are added only until a round is decided or its budget is spent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_charllm.judge.chances import Spread
from pytest_charllm.judge.policy import Policy
from pytest_charllm.judge.tolerances import GPU, noise_factor
from pytest_charllm.judge.yardstick import Call, Yardstick
from pytest_charllm.records import METRICS, Judgement, NeedMore, Verdict, tier

CALM = [[64000.0 * (1 + night + launch) for launch in (-0.003, 0.0, 0.003)] for night in (-0.003, 0.0, 0.003)] * 3
"""Nine runs: launches and runs scatter by about 0.3 %."""


def stick(launch: float = 0.004, shared: float = 0.003, metric: str = "throughput") -> Yardstick:
    return Yardstick(
        metric=METRICS[metric], rule=GPU["throughput"], reference=1.0, floor=0.01, spread=Spread(shared, launch),
        factor=noise_factor(),
    )  # fmt: skip


def test_one_launch_that_is_clear_ends_the_round(make: SimpleNamespace) -> None:
    """Nine nights in ten nothing moved: two more launches would say the same."""
    judgement = make.decide([[make.gpu()]], make.record(CALM))
    assert isinstance(judgement, Judgement)
    assert (judgement.verdict, judgement.launches) == (Verdict.PASS, 1)


def test_where_the_noise_is_assumed_rounds_are_whole(make: SimpleNamespace) -> None:
    """What stops early relies on the noise; and the record needs whole runs before it can show any."""
    policy = Policy(tier("nightly", False), is_cpu=False)
    assert policy.first_launches(make.record(CALM), make.comparable()) == 1
    assert policy.first_launches(make.record(CALM[:7]), make.comparable()) == 3
    assert policy.first_launches(None, make.comparable()) == 3
    assert make.decide([[make.gpu()]], make.record(CALM[:7])).launches == 2


def test_a_cpu_starts_as_ever(make: SimpleNamespace) -> None:
    """One launch against a record, five without, none where the checks alone decide."""
    policy = Policy(tier("smoke", True), is_cpu=True)
    record, here = make.baseline([make.cpu()] * 5, is_cpu=True), make.comparable(is_cpu=True)
    assert policy.first_launches(record, here) == 1
    assert policy.first_launches(None, here) == 5
    assert policy.first_launches(record, here, speed=False) == 0


def test_in_between_asks_for_one_more(make: SimpleNamespace) -> None:
    """A launch near the tolerance could be either: the next one belongs to the same round, from the same heat."""
    record = make.record(CALM)
    near = make.gpu({"throughput": 64000 * 0.986})
    need = make.decide([[near]], record)
    assert isinstance(need, NeedMore)
    assert (need.launches, need.confirms, need.cool_to_c) == (1, False, {})
    assert need.reason == "undecided after 1 of 3 launches: throughput -1.4 %"
    assert make.decide([[near, make.gpu()]], record).verdict is Verdict.PASS


def test_the_budget_ends_a_round(make: SimpleNamespace) -> None:
    """Never a launch more than the tier allows, however close the call."""
    record = make.record(CALM)
    near = make.gpu({"throughput": 64000 * 0.987})
    assert make.decide([[near, near]], record).launches == 1
    judgement = make.decide([[near] * 3], record)
    assert (judgement.verdict, judgement.launches) == (Verdict.PASS, 3)


def test_a_crass_breach_goes_on_to_its_confirmation_at_once(make: SimpleNamespace) -> None:
    """6 % less at the first launch: the second one already confirms, after cooling; the third is not needed."""
    record = make.record(CALM)
    slow = make.gpu({"throughput": 60000.0})
    need = make.decide([[slow]], record)
    assert (need.launches, need.confirms, need.cool_to_c) == (1, True, {"GPU-0": 30.0})
    judgement = make.decide([[slow], [slow]], record)
    assert (judgement.verdict, judgement.launches) == (Verdict.REGRESSION, 2)
    assert judgement.because.startswith("throughput -6.2 % (tolerance 1.5 %), confirmed -6.2 %")


def test_an_open_confirmation_is_filled_up_without_cooling(make: SimpleNamespace) -> None:
    """Those on record followed each other warm as well."""
    record = make.record(CALM)
    slow, near = make.gpu({"throughput": 60000.0}), make.gpu({"throughput": 64000 * 0.985})
    need = make.decide([[slow], [near]], record)
    assert (need.launches, need.confirms, need.cool_to_c) == (1, True, {})
    assert make.decide([[slow], [near, make.gpu()]], record).verdict is Verdict.PASS


def test_an_improvement_takes_the_whole_round(make: SimpleNamespace) -> None:
    """It asks for a new baseline, which three launches make and one does not."""
    record = make.record(CALM)
    fast = make.gpu({"throughput": 66000.0})
    assert make.decide([[fast]], record).launches == 1
    assert make.decide([[fast] * 3], record).verdict is Verdict.IMPROVED


def test_a_sensor_silent_in_one_launch_gets_another(make: SimpleNamespace) -> None:
    """A required metric that the first launch missed is not decided yet; after the whole round it is not measured."""
    record = make.record(CALM)
    silent = make.gpu({"energy_per_token": None})
    assert isinstance(make.decide([[silent]], record), NeedMore)
    assert make.decide([[silent] * 3], record).verdict is Verdict.INCONCLUSIVE
    assert make.decide([[silent, make.gpu(), make.gpu()]], record).verdict is Verdict.PASS


def test_asked_launches_are_taken_whole(make: SimpleNamespace) -> None:
    """Whoever asks for five gets five, to put them on record."""
    need = make.decide([[make.gpu()]], make.record(CALM), first_launches=5)
    assert need.launches == 4


def test_early_breaches_take_more_than_late_ones() -> None:
    """Each look is another chance to be unlucky: the early ones are taken only when there is hardly any."""
    one = stick()
    change = one.factor * one.spread.of(1) + 1e-4
    assert one.look([1 - change], 3).call is Call.UNDECIDED
    assert one.look([1 - change], 1).call is Call.WORSE
    assert one.look([1 - change - one.spread.of(1)], 3).call is Call.WORSE


@pytest.mark.parametrize("launches", [1, 2])
def test_a_cleared_round_would_hardly_have_breached(launches: int) -> None:
    """What is let go early stays within by 2.33 standard deviations of what is still to come."""
    one = stick(launch=0.005, shared=0.0)
    near = 1 - one.tolerance(3) + 1e-6
    assert one.look([near] * launches, 3).call is Call.UNDECIDED
    assert one.look([near] * 3, 3).call is Call.WITHIN
    assert one.look([1.0] * launches, 3).call is Call.WITHIN
