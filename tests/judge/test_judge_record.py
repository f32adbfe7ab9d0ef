"""What is on record: several runs and stacks, other cards, and records that are odd or broken."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.judge.tolerances import GPU, MEASURED, rules_for
from pytest_charllm.records import Baseline, Stack, Value, Verdict

LEVEL = 64000.0


def with_runs(record: Baseline, *changes: dict[str, Any]) -> Baseline:
    """The record's runs with fields replaced, run by run from the last one back."""
    runs = list(record.stacks)
    for back, change in enumerate(changes, 1):
        runs[-back] = replace(runs[-back], **change)
    return replace(record, stacks=tuple(runs))


def kinds(judgement: Any) -> list[str]:
    return [finding.kind for finding in judgement.findings]


def test_runs_of_one_stack_are_one_level(make: SimpleNamespace) -> None:
    """With the last run alone as reference, its luck would be everybody's tolerance."""
    record = make.record([[64000.0] * 3, [64400.0] * 3, [63800.0] * 3])
    assert make.row(make.decide([[make.gpu()] * 3], record), "throughput").reference == 64000.0


def test_the_newest_stack_is_the_level(make: SimpleNamespace) -> None:
    """A driver that was accepted with its slower numbers is what the next night is held against."""
    record = make.record([[66000.0] * 3, [66000.0] * 3, [64000.0] * 3])
    record = with_runs(record, {"stack": Stack(torch="2.11.0", driver="580")})
    judgement = make.decide([[make.gpu()] * 3], record)
    assert make.row(judgement, "throughput").reference == 64000.0
    assert judgement.verdict is Verdict.PASS
    assert judgement.stack_diff == ()


def test_an_accepted_move_is_a_new_level(make: SimpleNamespace) -> None:
    """An improvement of the same software (our own code got faster) must not be averaged away by what came before."""
    record = make.record([[64000.0] * 3] * 5 + [[67000.0] * 3])
    assert make.row(make.decide([[make.gpu()] * 3], record), "throughput").reference == 64000.0
    moved = with_runs(record, {"new_level": True})
    assert make.row(make.decide([[make.gpu()] * 3] * 2, moved), "throughput").reference == 67000.0
    assert make.decide([[make.gpu()] * 3] * 2, moved).verdict is Verdict.REGRESSION


def test_noise_is_learned_from_older_stacks_too(make: SimpleNamespace) -> None:
    """How much a scenario scatters does not start anew with every driver."""
    nights = [[LEVEL * (1 + 0.002 * (i % 3) + 0.001 * launch) for launch in range(3)] for i in range(9)]
    record = with_runs(make.record(nights), {"stack": Stack(driver="580")})
    row = make.row(make.decide([[make.gpu()]], record, first_launches=1), "throughput")
    assert not row.noise.provisional
    assert row.noise.runs == 9


def test_a_foreign_card_widens_and_is_named(make: SimpleNamespace) -> None:
    """Two H200 differ by 0.7 %: that is no regression, and the reader has to know why the tolerance is wide."""
    record = make.record([[LEVEL] * 3] * 8)
    here, elsewhere = make.gpu({"throughput": 0.98 * LEVEL}), make.gpu({"throughput": 0.98 * LEVEL}, uuid="GPU-7")
    assert make.decide([[here] * 3] * 2, record).verdict is Verdict.REGRESSION
    judgement = make.decide([[elsewhere] * 3], record)
    assert judgement.verdict is Verdict.PASS
    assert make.row(judgement, "throughput").tolerance > 0.02
    told = next(finding.text for finding in judgement.findings if finding.kind == "foreign-card")
    assert "other cards (GPU-0)" in told
    assert "until 5 runs from these are on record (0 so far)" in told
    assert "foreign-card" not in kinds(make.decide([[here] * 3] * 2, record))


def test_five_local_runs_are_the_level(make: SimpleNamespace) -> None:
    """From then on this machine is held against itself, and what came with the repository is left aside."""
    shipped, local = [[LEVEL] * 3] * 3, [[0.99 * LEVEL] * 3]
    here = make.gpu({"throughput": 0.99 * LEVEL}, uuid="GPU-7")

    def judged(runs: int) -> Any:
        record = make.record(shipped + local * runs)
        runs_of = [
            replace(run, samples=tuple(replace(sample, device_uuids=("GPU-7",)) for sample in run.samples))
            for run in record.stacks[3:]
        ]
        return make.decide([[here] * 3], replace(record, stacks=(*record.stacks[:3], *runs_of)))

    assert make.row(judged(4), "throughput").reference == pytest.approx(0.99 * LEVEL)
    assert "(4 so far)" in next(f.text for f in judged(4).findings if f.kind == "foreign-card")
    assert make.row(judged(2), "throughput").reference == LEVEL
    assert "foreign-card" not in kinds(judged(5))
    assert make.row(judged(5), "throughput").reference == pytest.approx(0.99 * LEVEL)


def test_a_run_on_record_twice_counts_once(make: SimpleNamespace) -> None:
    """A merge of two branches that accepted the same night must not make it eight nights."""
    record = make.record([[LEVEL] * 3])
    judgement = make.decide([[make.gpu()] * 3], replace(record, stacks=record.stacks * 8))
    assert make.row(judgement, "throughput").reason == "noise provisional: 1 of 8 runs on record"
    assert "run run-0 is on record 8 times and counts once" in [finding.text for finding in judgement.findings]


def test_one_launch_on_record_is_judged_provisionally(make: SimpleNamespace) -> None:
    """Little is known, so the tolerance is wide; but a tenth less is red."""
    record = make.record([[LEVEL]])
    judgement = make.decide([[make.gpu()] * 3], record)
    assert judgement.verdict is Verdict.PASS
    assert make.row(judgement, "throughput").reason.startswith("noise provisional")
    red = make.decide([[make.gpu({"throughput": 0.9 * LEVEL, "energy_per_token": 0.013})] * 3] * 2, record)
    assert red.verdict is Verdict.REGRESSION
    assert [finding.text for finding in red.findings] == [
        "throughput, energy per token: noise provisional: 1 of 8 runs on record"
    ]


def test_what_eight_runs_show_is_not_called_provisional(make: SimpleNamespace) -> None:
    """A label on every red line would be read as a reason to doubt each of them."""
    red = make.decide([[make.gpu({"throughput": 0.9 * LEVEL})] * 3] * 2, make.record([[LEVEL] * 3] * 8))
    assert (red.verdict, kinds(red)) == (Verdict.REGRESSION, [])
    once = make.decide([[make.gpu({"throughput": 0.9 * LEVEL})] * 3, [make.gpu()] * 3], make.record([[LEVEL]]))
    assert (once.verdict, kinds(once)) == (Verdict.PASS, ["not-confirmed"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"variant": "h100-sxm"}, "variant: h100-sxm on record, h200-sxm here"),
        ({"power_limit_w": 600.0}, "power_limit_w: 600.0 on record, 700.0 here"),
        ({"flop_formula": "palm_full"}, "flop_formula: palm_full on record, causal_half here"),
        ({"measuring": 0}, "measuring: 0 on record, 1 here"),
        ({"units": {"throughput": "tokens/s"}}, "units of throughput: tokens/s on record, tokens/s/GPU here"),
    ],
)
def test_an_incomparable_record_is_named(make: SimpleNamespace, changes: dict[str, Any], told: str) -> None:
    """Numbers that mean something else are no baseline, and the reader is told which difference it is."""
    record = make.baseline([make.gpu()] * 3)
    record = replace(record, comparable=replace(record.comparable, **changes))
    here = replace(make.comparable(), units={"throughput": "tokens/s/GPU"})
    judgement = make.decide([[make.gpu()] * 3], record, comparable=here)
    assert (judgement.verdict, judgement.because) == (
        Verdict.NO_BASELINE,
        f"the baseline is not comparable: {told}",
    )
    assert make.row(judgement, "throughput").value == LEVEL


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, 0.0])
def test_what_is_no_number_is_not_judged(make: SimpleNamespace, value: float) -> None:
    """NaN is below no tolerance and above none: it would pass. A clock that ran back gives negative speed."""
    judgement = make.decide([[make.gpu({"throughput": value}, launch_id="l7")] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because == f"throughput: l7: throughput of {value:g}: not a number, or a clock ran back"
    assert make.row(judgement, "energy_per_token").verdict is Verdict.PASS


def test_another_unit_is_not_judged(make: SimpleNamespace) -> None:
    """Joules and millijoules a token are a thousand times apart, and one of them an enormous gain."""
    launch = make.gpu()
    values = launch.values | {"energy_per_token": Value(value=10.9, unit="mJ/token")}
    judgement = make.decide([[replace(launch, values=values)] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.because == "energy per token: l: energy per token in mJ/token, not in J/token"


@pytest.mark.parametrize("value", [math.nan, 0.0, -1.0])
def test_a_useless_reference_is_no_reference(make: SimpleNamespace, value: float) -> None:
    """Nothing can be a share of it."""
    judgement = make.decide([[make.gpu()] * 3], make.record([[value] * 3]))
    assert judgement.because == f"throughput: {value:g} on record is no reference"
    some = make.decide([[make.gpu()] * 3], make.record([[value, LEVEL, LEVEL]]))
    assert make.row(some, "throughput").reference == LEVEL


def test_hardware_nobody_measured_gets_wider_floors() -> None:
    """The floors are an H200's. Where nobody has seen the scatter, they would be a guess on the sharp side."""
    assert rules_for(MEASURED[0], "nightly", False) == GPU
    other = rules_for("mi300x", "nightly", False)
    assert other["throughput"].floor == 2 * GPU["throughput"].floor
    assert other["core_temp_end"] == GPU["core_temp_end"]
    assert other["peak_memory"] == GPU["peak_memory"]


def heated(make: SimpleNamespace, changes: dict[str, float], **fields: Any) -> Any:
    """On another card or from another start than the record, unless `fields` say neither."""
    return make.decide([[make.gpu(changes, **fields)] * 3] * 2, make.baseline([make.gpu()] * 3))


def test_heating_is_judged_where_degrees_may_not_be_compared(make: SimpleNamespace) -> None:
    """Another start, or another card, makes degrees mean little: twice the rise per watt is a fan all the same."""
    for fields in ({"uuid": "GPU-7"}, {"start_c": 38.0}):
        judgement = heated(make, {"heating": 0.1, "core_temp_end": 85.0}, **fields)
        assert judgement.verdict is Verdict.REGRESSION
        assert [row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION] == ["heating"]
    assert heated(make, {"heating": 0.06}, start_c=38.0).verdict is Verdict.REGRESSION
    assert heated(make, {"heating": 0.06}, uuid="GPU-7").verdict is Verdict.PASS


def test_degrees_are_judged_by_themselves_on_the_same_card_and_start(make: SimpleNamespace) -> None:
    """8 degC more on the same card is red by its degrees, once, not a second time by what is made of them."""
    judgement = heated(make, {"heating": 0.1, "core_temp_end": 70.0})
    assert [row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION] == ["core_temp_end"]
    assert make.row(judgement, "heating").reason == "the degrees themselves are compared"


def test_one_hot_gpu_among_others(make: SimpleNamespace) -> None:
    """A node whose GPUs were 3 degC apart and now are 14 has one that is not cooled; another node's degrees aside."""
    judgement = heated(make, {"core_temp_spread": 14.0}, uuid="GPU-7")
    assert [row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION] == ["core_temp_spread"]
    assert heated(make, {"core_temp_spread": 12.0}, uuid="GPU-7").verdict is Verdict.PASS
