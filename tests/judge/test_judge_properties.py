"""What must hold for any numbers at all."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.judge.metric import Question, judge_metric
from pytest_charllm.judge.reference import recorded_runs
from pytest_charllm.judge.tolerances import GPU
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import TIERS, Judgement, NeedMore, Verdict

REQUIRED = TIERS["nightly", False].required
ratios = st.floats(0.8, 1.25)
rounds = st.lists(ratios, min_size=3, max_size=3)
MIRRORED = {Call.WORSE: Call.BETTER, Call.BETTER: Call.WORSE, Call.WITHIN: Call.WITHIN}


def call(make: SimpleNamespace, metric: str, recorded: list[float], here: list[float]) -> Call:
    """By the rule of throughput, whatever the metric."""
    runs = recorded_runs(make.baseline([make.gpu({metric: value}) for value in recorded]))
    launches = [make.gpu({metric: value}) for value in here]
    return judge_metric(metric, GPU["throughput"], runs, launches, Question(budget=len(here))).call


@settings(deadline=None, max_examples=50)
@given(here=rounds)
def test_direction_is_all_that_differs_between_metrics(make: SimpleNamespace, here: list[float]) -> None:
    """A sign slip for one direction makes every improvement of it a regression."""
    higher = call(make, "throughput", [1.0], here)
    assert call(make, "step_time", [1.0], here) is MIRRORED[higher]
    assert call(make, "mean_power", [1.0], here) is (Call.WITHIN if higher is Call.WITHIN else Call.WORSE)


@settings(deadline=None, max_examples=50)
@given(here=rounds, recorded=st.lists(ratios, min_size=1, max_size=12), exponent=st.integers(-20, 20))
def test_units_do_not_matter_to_relative_metrics(
    make: SimpleNamespace, here: list[float], recorded: list[float], exponent: int
) -> None:
    """Joules and millijoules a token are one baseline. Scaled by powers of two, which lose no digit."""
    scale = 2.0**exponent
    scaled = call(make, "throughput", [scale * value for value in recorded], [scale * value for value in here])
    assert scaled is call(make, "throughput", recorded, here)


@settings(deadline=None, max_examples=50)
@given(first=rounds, again=rounds, metric=st.sampled_from(["throughput", "energy_per_token", "mean_power"]))
def test_regression_takes_two_breaches(
    make: SimpleNamespace, first: list[float], again: list[float], metric: str
) -> None:
    """Unchanged code must never be called a regression by one round alone."""

    def launches(round_: list[float]) -> list[object]:
        return [make.gpu({metric: make.GPU_VALUES[metric] * ratio}) for ratio in round_]

    def moved(round_: list[float]) -> bool:
        return abs(statistics.median(round_) - 1) > GPU[metric].floor - 1e-9

    record = make.baseline([make.gpu()] * 3)
    outcome = make.decide([launches(first)], record)
    if isinstance(outcome, NeedMore):
        assert moved(first)
        outcome = make.decide([launches(first), launches(again)], record)
        assert isinstance(outcome, Judgement)
    if outcome.verdict is Verdict.REGRESSION:
        assert moved(first)
        assert moved(again)


@settings(deadline=None, max_examples=50)
@given(launches=rounds.flatmap(lambda numbers: st.tuples(st.just(numbers), st.permutations(numbers))))
def test_order_of_launches_does_not_matter(make: SimpleNamespace, launches: tuple[list[float], list[float]]) -> None:
    """Which launch of a round came first is chance."""
    record = make.baseline([make.gpu()] * 3)
    one, other = (
        make.decide([[make.gpu({"throughput": 64000 * ratio}) for ratio in round_]] * 2, record) for round_ in launches
    )
    assert one == other


@settings(deadline=None, max_examples=50)
@given(
    missing=st.sets(st.sampled_from(REQUIRED), min_size=1),
    others=st.dictionaries(st.sampled_from(sorted(GPU)), ratios, max_size=4),
)
def test_missing_evidence_never_passes(make: SimpleNamespace, missing: set[str], others: dict[str, float]) -> None:
    """Whatever the rest says, a required metric that nobody saw withholds the pass."""
    changes = {metric: make.GPU_VALUES[metric] * ratio for metric, ratio in others.items()}
    launch = make.gpu(changes | dict.fromkeys(missing))
    outcome = make.decide([[launch] * 3] * 2, make.baseline([make.gpu()] * 3))
    assert outcome.verdict in (Verdict.INCONCLUSIVE, Verdict.REGRESSION)
    for row in outcome.metrics:
        assert row.metric not in missing or row.verdict is Verdict.INCONCLUSIVE
