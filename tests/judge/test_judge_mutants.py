"""Would the tests notice a wrong rule? Each mutant of the rule has to fail the check that is named for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.judge import chances, metric, policy, yardstick
from pytest_charllm.judge.noise import estimate
from pytest_charllm.judge.policy import Policy
from pytest_charllm.judge.yardstick import Call, Yardstick
from pytest_charllm.records import Baseline, Judgement, Measurement, Noise, Verdict

LEVEL = 64000.0
Check = Callable[[SimpleNamespace], None]


def moved(make: SimpleNamespace, *changes: float) -> list[Measurement]:
    return [make.gpu({"throughput": LEVEL * (1 + change)}) for change in changes]


def drawn(chance: random.Random, make: SimpleNamespace, runs: int = 12, scatter: float = 0.005) -> Baseline:
    """A record of runs that scatter by this much, and launches too."""
    levels = [LEVEL * (1 + chance.gauss(0, scatter)) for _ in range(runs)]
    return make.record([[level * (1 + chance.gauss(0, scatter)) for _ in range(3)] for level in levels])


def decided(make: SimpleNamespace, record: Baseline, night: list[float]) -> Judgement:
    """A whole check: launches of `night` are handed out as the policy asks for them."""
    rounds: list[list[Measurement]] = [moved(make, *night[:1])]
    while not isinstance(outcome := make.decide(rounds, record), Judgement):
        if outcome.confirms and len(rounds) < 2:
            rounds.append([])
        done = sum(len(each) for each in rounds)
        rounds[-1] += moved(make, *night[done : done + outcome.launches])
    return outcome


def slower_is_worse(make: SimpleNamespace) -> None:
    record = make.record([[LEVEL] * 3] * 8)
    assert make.decide([moved(make, *[-0.05] * 3)] * 2, record).verdict is Verdict.REGRESSION
    assert make.decide([moved(make, *[0.05] * 3)] * 2, record).verdict is Verdict.IMPROVED


def calm_records_keep_the_floor(make: SimpleNamespace) -> None:
    record = make.record([[LEVEL] * 3] * 8)
    assert make.decide([moved(make, *[-0.012] * 3)] * 2, record).verdict is Verdict.PASS


def noisy_records_widen(make: SimpleNamespace) -> None:
    record = drawn(random.Random(4), make)
    assert make.decide([moved(make, *[-0.017] * 3)] * 2, record).verdict is Verdict.PASS


def luck_is_no_regression(make: SimpleNamespace) -> None:
    """A hundred unchanged nights: not one is red."""
    chance = random.Random(5)
    for _ in range(100):
        record, night = drawn(chance, make, scatter=0.01), chance.gauss(0, 0.01)
        launches = [night + chance.gauss(0, 0.01) for _ in range(6)]
        assert decided(make, record, launches).verdict is not Verdict.REGRESSION


def one_bad_round_is_no_regression(make: SimpleNamespace) -> None:
    record = make.record([[LEVEL] * 3] * 8)
    outcome = make.decide([moved(make, *[-0.05] * 3)], record)
    assert not isinstance(outcome, Judgement)
    assert make.decide([moved(make, *[-0.05] * 3), moved(make, *[0.0] * 3)], record).verdict is Verdict.PASS


def a_whole_round_decides_near_the_tolerance(make: SimpleNamespace) -> None:
    """The first of three launches is unlucky by four standard deviations of the whole round: look on."""
    record = drawn(random.Random(6), make)
    row = make.row(make.decide([moved(make, 0.0)], record), "throughput")
    night = [-row.tolerance - 0.003, 0.0, 0.0]
    judgement = decided(make, record, night)
    assert (judgement.verdict, judgement.launches) == (Verdict.PASS, 2)
    assert not [finding for finding in judgement.findings if finding.kind == "not-confirmed"]


def one_wild_launch_does_not_speak_for_the_round(make: SimpleNamespace) -> None:
    record = make.record([[LEVEL] * 3] * 8)
    assert isinstance(make.decide([moved(make, 0.0, 0.0, -0.2)], record), Judgement)
    assert make.decide([moved(make, -0.05, -0.05, 0.2)] * 2, record).verdict is Verdict.REGRESSION


def nights_count_as_noise(make: SimpleNamespace) -> None:
    """Launches of one night agree to 0.05 %, nights do not: a night's 1.7 % is nothing."""
    nights = [[LEVEL * (1 + 0.006 * (i % 3 - 1) + 0.0005 * launch) for launch in range(3)] for i in range(9)]
    assert make.decide([moved(make, *[-0.017] * 3)] * 2, make.record(nights)).verdict is Verdict.PASS


def breach_and_confirmation_share_the_night(make: SimpleNamespace) -> None:
    """The stated chance of a false alarm is far above that of two independent breaches."""
    record = drawn(random.Random(8), make, runs=20)
    row = make.row(make.decide([moved(make, *[0.0] * 3)], record), "throughput")
    assert 1e-4 < row.false_alarm < 1e-3


def noise_past_the_cap_buys_no_pass(make: SimpleNamespace) -> None:
    record = make.record([[LEVEL * (1 + 0.02 * i)] * 3 for i in range(-4, 5)])
    assert make.decide([moved(make, *[-0.05] * 3)], record).verdict is Verdict.INCONCLUSIVE


CHECKS: tuple[Check, ...] = (
    slower_is_worse,
    calm_records_keep_the_floor,
    noisy_records_widen,
    luck_is_no_regression,
    one_bad_round_is_no_regression,
    a_whole_round_decides_near_the_tolerance,
    one_wild_launch_does_not_speak_for_the_round,
    nights_count_as_noise,
    breach_and_confirmation_share_the_night,
    noise_past_the_cap_buys_no_pass,
)


def sign_flipped(patch: pytest.MonkeyPatch) -> None:
    worse = Yardstick._worse
    patch.setattr(Yardstick, "_worse", lambda self, change: worse(self, -change))


def min_for_max(patch: pytest.MonkeyPatch) -> None:
    def tolerance(self: Yardstick, launches: int) -> float:
        return self.floor if self.spread is None else min(self.floor, self.factor * self._sigma(launches))

    patch.setattr(Yardstick, "tolerance", tolerance)


def k_halved(patch: pytest.MonkeyPatch) -> None:
    factor = policy.noise_factor
    patch.setattr(policy, "noise_factor", lambda checks: factor(checks) / 2)


def confirmation_dropped(patch: pytest.MonkeyPatch) -> None:
    decide, verdict = Policy.decide, policy.metric_verdict

    def unconfirmed(first, again, required, rounds):
        return verdict(first, first if first.call is Call.WORSE else again, required, rounds)

    def at_once(self, scenario, baseline, comparable, rounds, aside, **options):
        alone = Policy(replace(self.tier, confirm_launches=0), self.is_cpu, self.checks, self.siblings)
        return decide(alone, scenario, baseline, comparable, rounds, aside, **options)

    patch.setattr(policy, "metric_verdict", unconfirmed)
    patch.setattr(Policy, "decide", at_once)


def confirmation_ignored(patch: pytest.MonkeyPatch) -> None:
    """It is launched, and then not looked at."""
    verdict = policy.metric_verdict
    patch.setattr(
        policy, "metric_verdict", lambda first, again, required, rounds: verdict(first, first, required, rounds)
    )


def early_looks_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(yardstick, "EARLY_FACTOR", -1.0)


def minimum_for_median(patch: pytest.MonkeyPatch) -> None:
    look = Yardstick.look
    patch.setattr(Yardstick, "look", lambda self, numbers, budget: look(self, [min(numbers)] * len(numbers), budget))


def nights_forgotten(patch: pytest.MonkeyPatch) -> None:
    def launches_only(runs, prior, siblings=None) -> Noise:
        return replace(estimate(runs, prior, siblings), run=0.0, assumed=())

    patch.setattr(metric, "estimate", launches_only)


def rounds_taken_as_independent(patch: pytest.MonkeyPatch) -> None:
    called = chances.called
    patch.setattr(chances, "called", lambda change, rounds, spread: called(change, rounds[:1], spread) ** len(rounds))


def cap_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Yardstick, "unreliable", lambda self, launches: False)


KILLED_BY: tuple[tuple[Callable[[pytest.MonkeyPatch], None], Check], ...] = (
    (sign_flipped, slower_is_worse),
    (min_for_max, calm_records_keep_the_floor),
    (min_for_max, noisy_records_widen),
    (k_halved, noisy_records_widen),
    (k_halved, luck_is_no_regression),
    (confirmation_dropped, one_bad_round_is_no_regression),
    (confirmation_ignored, one_bad_round_is_no_regression),
    (early_looks_for_nothing, a_whole_round_decides_near_the_tolerance),
    (minimum_for_median, one_wild_launch_does_not_speak_for_the_round),
    (nights_forgotten, nights_count_as_noise),
    (rounds_taken_as_independent, breach_and_confirmation_share_the_night),
    (cap_dropped, noise_past_the_cap_buys_no_pass),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rule_holds(make: SimpleNamespace, check: Check) -> None:
    """What every mutant below is held against."""
    check(make)


@pytest.mark.parametrize(
    ("mutate", "check"), KILLED_BY, ids=[f"{mutate.__name__}-{check.__name__}" for mutate, check in KILLED_BY]
)
def test_mutants_are_killed(
    make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], check: Check
) -> None:
    """A check that passes on a wrong rule checks nothing."""
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check(make)
