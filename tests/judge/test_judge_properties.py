"""What must hold for any numbers at all."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.judge.chances import Spread
from pytest_charllm.judge.metric import Question, judge_metric
from pytest_charllm.judge.reference import recorded_runs
from pytest_charllm.judge.tolerances import GPU
from pytest_charllm.judge.yardstick import Call, Yardstick
from pytest_charllm.records import METRICS, TIERS, Baseline, Better, Judgement, NeedMore, Verdict

REQUIRED = TIERS["nightly", False].required
ratios = st.floats(0.8, 1.25)
rounds = st.lists(ratios, min_size=3, max_size=3)
RELATIVE = tuple(metric for metric in GPU if METRICS[metric].relative and not GPU[metric].and_at_least)
ONE_SIDED = [
    metric for metric, rule in GPU.items() if METRICS[metric].better is not Better.NEITHER and not rule.informational
]
Nights = tuple[dict[str, list[float]], dict[str, list[float]]]
each_round = st.fixed_dictionaries(dict.fromkeys(RELATIVE, rounds))
nights = st.tuples(each_round, each_round)
records = st.lists(st.lists(st.floats(0.98, 1.02), min_size=3, max_size=3), min_size=1, max_size=10)
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


def night(make: SimpleNamespace, changes: Nights, scale: float = 1.0, start_c: float = 30.0) -> list[list[object]]:
    """Two rounds of three launches, by the ratio of each metric to the usual."""

    def launch(ratios: dict[str, list[float]], i: int) -> object:
        values = {metric: make.GPU_VALUES[metric] * scale * each[i] for metric, each in ratios.items()}
        return make.gpu(values, start_c=start_c)

    return [[launch(ratios, i) for i in range(3)] for ratios in changes]


def recorded(make: SimpleNamespace, runs: list[list[float]], scale: float = 1.0) -> Baseline:
    """Runs in which every relative metric moved together."""
    return make.record(
        [[64000.0 * scale * ratio for ratio in run] for run in runs],
        **{metric: make.GPU_VALUES[metric] * scale for metric in RELATIVE if metric != "throughput"},
    )


@settings(deadline=None, max_examples=40)
@given(changes=nights, runs=records, exponent=st.integers(-8, 8), start_c=st.sampled_from((30.0, 50.0)))
def test_scale_of_relative_metrics_changes_no_verdict(
    make: SimpleNamespace, changes: Nights, runs: list[list[float]], exponent: int, start_c: float
) -> None:
    """Tokens or kilotokens a second: a rule with a hidden absolute number in it would notice. By powers of two, which
    lose no digit. From either start: the peak is judged of one, degrees a watt of the other. Compile time has such a
    number on purpose (5 s) and is left out."""
    scale = 2.0**exponent
    plain = make.decide(night(make, changes, start_c=start_c), recorded(make, runs))
    scaled = make.decide(night(make, changes, scale, start_c), recorded(make, runs, scale))
    assert type(plain) is type(scaled)
    if isinstance(plain, Judgement):
        assert [(row.metric, row.verdict) for row in plain.metrics] == [
            (row.metric, row.verdict) for row in scaled.metrics
        ]
        assert plain.verdict is scaled.verdict


@settings(deadline=None, max_examples=40)
@given(changes=nights, runs=records, order=st.permutations(range(3)), again=st.permutations(range(3)))
def test_order_within_a_round_changes_nothing(
    make: SimpleNamespace, changes: Nights, runs: list[list[float]], order: list[int], again: list[int]
) -> None:
    """Which launch of a round came first is chance."""
    first, second = night(make, changes)
    shuffled = [[first[i] for i in order], [second[i] for i in again]]
    record = recorded(make, runs)
    one, other = make.decide([first, second], record), make.decide(shuffled, record)
    assert type(one) is type(other)
    if isinstance(one, Judgement):
        assert (one.verdict, one.metrics) == (other.verdict, other.metrics)


@settings(deadline=None, max_examples=60)
@given(
    metric=st.sampled_from(ONE_SIDED),
    rounds_=st.tuples(rounds, rounds),
    runs=records,
    which=st.integers(0, 5),
    by=st.floats(0.001, 0.3),
)
def test_one_sided_metrics_are_monotonic(
    make: SimpleNamespace,
    metric: str,
    rounds_: tuple[list[float], list[float]],
    runs: list[list[float]],
    which: int,
    by: float,
) -> None:
    """A slower launch must not turn red into green, nor a faster one green into red."""
    record = recorded(make, runs)
    towards_worse = -1 if METRICS[metric].better is Better.HIGHER else 1

    def verdict(change: float) -> Verdict | None:
        ratios = [list(each) for each in rounds_]
        ratios[which // 3][which % 3] += change
        outcome = make.decide(
            [[make.gpu({metric: make.GPU_VALUES[metric] * ratio}) for ratio in each] for each in ratios], record
        )
        return make.row(outcome, metric).verdict if isinstance(outcome, Judgement) else None

    before, worse, better = verdict(0.0), verdict(towards_worse * by), verdict(-towards_worse * by)
    if before is Verdict.REGRESSION:
        assert worse is Verdict.REGRESSION
    else:
        assert better is not Verdict.REGRESSION


@settings(deadline=None, max_examples=40)
@given(
    numbers=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3),
    sigma=st.floats(0.0005, 0.02),
    shared=st.floats(0.0, 0.02),
)
def test_early_looks_say_nothing_the_whole_round_does_not_need(
    numbers: list[float], sigma: float, shared: float
) -> None:
    """A round that ended early must have been beyond, or inside, by more than the whole round asks for."""
    stick = Yardstick(
        metric=METRICS["throughput"], rule=GPU["throughput"], reference=1.0, floor=0.015,
        spread=Spread(shared, sigma), factor=3.09,
    )  # fmt: skip
    for launches in (1, 2):
        call, change, tolerance = stick.look(numbers[:launches], 3)
        assert tolerance == stick.tolerance(3)
        assert call is not Call.BETTER
        if call is Call.WORSE:
            assert change < -tolerance
        if call is Call.WITHIN:
            assert abs(change) <= tolerance


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
