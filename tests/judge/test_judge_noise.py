"""Tolerances from recorded spread, the power of a pass, agreement, and how it all behaves on recorded launches."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.judge.agreement import agreement
from pytest_charllm.judge.chances import Round, Spread, called, would_have_seen
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.metric import siblings_of
from pytest_charllm.judge.noise import Run, estimate, launches_alone, robust_sigma
from pytest_charllm.judge.tolerances import GPU, noise_factor
from pytest_charllm.records import NeedMore, Noise, Verdict, tier


def runs(
    medians: list[float], scatter: float = 0.0, launches: int = 3, cards: tuple[str, ...] = ("GPU-0",)
) -> list[Run]:
    """Runs of one segment around these medians, each with launches `scatter` apart."""
    middle = (launches - 1) / 2
    return [Run(0, cards, tuple(m + scatter * (i - middle) for i in range(launches))) for m in medians]


def drawn(
    chance: random.Random, count: int, launch: float, run: float, launches: int = 3, card: float = 0.0
) -> list[Run]:
    """`count` runs on as many cards as `card` asks for, drawn from normal distributions."""
    found = []
    for number in range(count):
        cards = (f"GPU-{number % 10 if card else 0}",)
        level = 1 + chance.gauss(0, run) + random.Random(cards[0]).gauss(0, card)
        found.append(Run(0, cards, tuple(level + chance.gauss(0, launch) for _ in range(launches))))
    return found


@pytest.mark.parametrize("scatter", [0.0, 0.001, 0.012])
def test_few_runs_leave_the_prior(scatter: float) -> None:
    """The spread of three launches is mostly luck; a lucky calm must not tighten the gate, nor bad luck open it."""
    noise = estimate(runs([1.0], scatter), prior=0.005)
    assert noise == Noise(launch=0.005, run=0.005, card=0.005, assumed=("launch", "run", "card"), runs=1)
    assert noise.provisional


def test_launches_too_far_apart_for_luck_speak_for_themselves(make: SimpleNamespace) -> None:
    """Three nightly launches of FSDP2 on two H200s, held up by their host, were 2.6 % apart (CoV): with the prior the
    first of them was all but red against their own median."""
    speeds = (35_944.3, 34_110.7, 34_971.1)
    level = statistics.median(speeds)
    noise = estimate([Run(0, ("GPU-0", "GPU-1"), tuple(speed / level for speed in speeds))], prior=0.005)
    assert noise.launch == pytest.approx(0.0238, abs=0.0005)
    assert (noise.card, noise.assumed) == (0.005, ("launch", "run", "card"))
    # The next night was 9.4 % faster, on other cards, and IMPROVED: nights are not calmer than launches.
    assert noise.run == noise.launch


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(max_examples=30)
def test_luck_opens_no_gate(seed: int, launches: int) -> None:
    """One in a thousand records of launches as noisy as assumed may widen their tolerance: more than two of 50 are no
    luck."""
    chance = random.Random(seed)
    widened = sum(
        estimate(drawn(chance, 1, 0.005, 0.0, launches), prior=0.005).launch != 0.005 for _ in range(50)
    )  # fmt: skip
    assert widened <= 2


def test_each_part_is_shown_by_its_own_pairs() -> None:
    """Launches of five runs are enough to show launches, and say nothing about runs or cards."""
    noise = estimate(runs([1.0, 1.01, 0.99, 1.02, 0.98], 0.004), prior=0.005)
    assert noise.assumed == ("run", "card")
    assert noise.launch == pytest.approx(0.004, rel=0.1)
    assert noise.run == 0.005


def test_split_finds_what_was_put_in() -> None:
    """Averaged over many records, each part is what the launches were drawn with: none is counted twice."""
    chance = random.Random(7)
    found = [estimate(drawn(chance, 40, launch=0.003, run=0.006), prior=None) for _ in range(200)]
    assert statistics.fmean(noise.launch for noise in found) == pytest.approx(0.003, rel=0.05)
    assert statistics.fmean(noise.run**2 for noise in found) ** 0.5 == pytest.approx(0.006, rel=0.08)
    cards = [estimate(drawn(chance, 40, launch=0.001, run=0.001, card=0.02), prior=None) for _ in range(20)]
    levels = [random.Random(f"GPU-{n}").gauss(0, 0.02) for n in range(10)]
    assert statistics.fmean(noise.card for noise in cards) == pytest.approx(statistics.stdev(levels), rel=0.4)


def test_other_software_is_no_noise() -> None:
    """A driver that made everything 5 % slower, and was accepted, must not make 5 % look like ordinary scatter."""
    before, after = runs([1.0 + 0.001 * i for i in range(6)]), runs([1.05 + 0.001 * i for i in range(6)])
    stepped = [*before, *(run._replace(segment=1) for run in after)]
    assert estimate(stepped, prior=None).run < 0.003
    assert estimate([*before, *after], prior=None).run > 0.02


def test_spread_is_robust() -> None:
    """One launch on a bad night must not triple the tolerance of all nights after."""
    calm = [1.0, 1.001, 0.999, 1.002, 0.998, 1.001, 0.999, 1.0]
    assert robust_sigma([*calm, 2.0], relative=True) < 0.003
    assert estimate(runs([*calm, 2.0], 0.001), prior=None).run < 0.003
    assert launches_alone([*calm, 2.0], None).launch < 0.003
    assert robust_sigma([60.0, 61.0, 62.0], relative=False) == pytest.approx(1.4826)


def test_zero_spread_is_no_noise_but_the_floor_stays(make: SimpleNamespace) -> None:
    """Launches that all read the same (a coarse sensor) must not make the least change an alarm."""
    record = make.record([[64000.0] * 3] * 9)
    assert make.row(make.decide([[make.gpu()] * 3], record), "throughput").tolerance == 0.015


def test_siblings_pull_and_stand_in() -> None:
    """A scenario that happened to be calm, or is new, learns from the others of its machine."""
    siblings = Noise(launch=0.004, run=0.006)
    calm = estimate(runs([1.0] * 9, 0.0), None, siblings)
    assert 0 < calm.launch < 0.004
    assert 0 < calm.run < 0.006
    assert not calm.provisional
    new = estimate(runs([1.0]), 0.005, siblings)
    assert (new.launch, new.run, new.card) == (0.004, 0.006, 0.005)
    assert new.provisional


def test_siblings_noise_is_what_they_show(make: SimpleNamespace) -> None:
    """Assumed parts must not go round in a circle as if several scenarios had shown them."""
    short = make.record([[64000.0, 64100.0, 63900.0]])
    assert siblings_of([short, short], GPU)["throughput"] == Noise()
    long = make.record([[64000.0 + 200 * i, 64100.0 + 200 * i, 63900.0 + 200 * i] for i in range(9)])
    assert siblings_of([short, long], GPU)["throughput"].launch == pytest.approx(100 / 64800, rel=0.1)


def test_unreliable_record_withholds_pass_but_not_red(make: SimpleNamespace) -> None:
    """A record that scatters by percents cannot say that nothing moved; a third less is a third less."""
    record = make.record([[64000 * (1 + 0.02 * i)] * 3 for i in range(-4, 5)])
    judgement = make.decide([[make.gpu({"throughput": 62000.0})] * 3], record)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "unreliable" in judgement.because
    assert "unreliable" in [finding.kind for finding in judgement.findings]
    assert make.decide([[make.gpu({"throughput": 36000.0})] * 3] * 2, record).verdict is Verdict.REGRESSION


def test_watts_are_no_surer_than_the_speed_they_come_with(make: SimpleNamespace) -> None:
    """FSDP2 that waits for its host, unchanged: +13 % tokens/s, which was too unsteady to be judged, and +15 % W, which
    was called a regression. A token that takes more joules is one all the same."""
    record = make.record([[64000 * (1 + 0.02 * i)] * 3 for i in range(-4, 5)])
    faster = {"throughput": 64000 * 1.10, "mean_power": 690 * 1.12}
    judgement = make.decide([[make.gpu(faster)] * 3], record)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert make.row(judgement, "mean_power").reason == "moves with throughput, which is unreliable"
    stalled = make.gpu({"throughput": 64000 * 0.98, "mean_power": 690 * 0.5})
    assert make.decide([[stalled] * 3] * 2, record).verdict is Verdict.REGRESSION
    hungrier = make.gpu(faster | {"energy_per_token": 0.0109 * 1.10})
    assert make.decide([[hungrier] * 3] * 2, record).verdict is Verdict.REGRESSION


def test_rates_promised_are_rates_kept() -> None:
    """The numbers of every verdict: that change is called nine times in ten, and luck alone as rarely as said.

    Breach and confirmation share the run: taken as independent, the false alarms would be twenty times too few.
    """
    spread, rounds = Spread(shared=0.005, launch=0.004), [Round(0.012, 3), Round(0.012, 3)]
    seen, false_alarm = would_have_seen(rounds, spread), called(0.0, rounds, spread)
    chance = random.Random(1)

    def share_called(change: float, trials: int) -> float:
        count = 0
        for _ in range(trials):
            level = change + chance.gauss(0, spread.shared)
            count += all(
                statistics.median(level + chance.gauss(0, spread.launch) for _ in range(each.launches)) > each.tolerance
                for each in rounds
            )
        return count / trials

    assert share_called(seen, 4000) == pytest.approx(0.9, abs=0.02)
    assert share_called(0.0, 40000) == pytest.approx(false_alarm, rel=0.25)
    alone = called(0.0, rounds[:1], spread)
    assert 20 * alone**2 < false_alarm < alone


def test_power_is_not_promised_where_noise_is_not_known(make: SimpleNamespace) -> None:
    """A made-up number would be read as a measured one."""
    row = make.row(make.decide([[make.gpu()] * 3], make.baseline([make.gpu()] * 3)), "core_temp_end")
    assert (row.would_have_seen, row.false_alarm) == (None, None)


def test_more_launches_see_less() -> None:
    """Launches that buy nothing would be a waste of the night."""
    seen = [would_have_seen([Round(0.015, count)] * 2, Spread(0.002, 0.005)) for count in (1, 3, 5, 9)]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 4


def test_without_noise_the_tolerance_is_what_is_seen() -> None:
    """Peak memory repeats to the byte: no division by that zero."""
    assert would_have_seen([Round(0.02, 3)], Spread(0.0, 0.0)) == pytest.approx(0.02)
    assert called(0.0, [Round(0.02, 3)], Spread(0.0, 0.0)) == 0.0


def test_a_long_run_makes_each_check_stricter() -> None:
    """A thousand checks a night at one false breach in a thousand each would breach by luck every night."""
    assert noise_factor(1) == noise_factor(100) == pytest.approx(3.09, abs=0.001)
    assert 3.2 < noise_factor(200) < noise_factor(3000) < 4.5


def test_agreement_is_the_coefficient_of_variation(make: SimpleNamespace) -> None:
    """Speed of a CPU goes on record only where five launches agree within 1.5 %."""
    launches = [make.cpu({"cost_cpu": value}) for value in (7.9, 8.0, 8.1)]
    assert agreement(launches, "cost_cpu") == pytest.approx(0.0125)
    assert agreement(launches[:1], "cost_cpu") is None
    assert agreement([*launches, make.cpu({"cost_cpu": None})], "cost_cpu") is None


def test_comparable_takes_what_was_measured(make: SimpleNamespace) -> None:
    """The limit enforced while measuring counts, not the one seen when the machine was found."""
    window = tier("nightly", False).window
    machine = make.GPU_MACHINE
    assert comparable_of(machine, window).power_limit_w == 700.0
    measured = comparable_of(machine, window, [make.gpu(power_limit_w=600.0, semantics={"energy_j": "counter"})])
    assert (measured.power_limit_w, measured.semantics) == (600.0, {"energy_j": "counter"})
    assert measured.window == "nightly 30 steps 15 s"
    assert measured.cpu_model is None
    assert comparable_of(make.CPU_MACHINE, window).cpu_model == "some CPU"


def test_silent_sensor_is_no_difference_but_another_meaning_is(make: SimpleNamespace) -> None:
    """A sampler that died would otherwise read as 'no baseline' instead of 'no evidence'."""
    recorded = replace(make.comparable(), semantics={"power_instant_w": "instant, GPU scope"})
    assert recorded.difference(make.comparable()) is None
    other = replace(make.comparable(), semantics={"power_instant_w": "1 s average"})
    assert recorded.difference(other) == (
        "semantics of power_instant_w: instant, GPU scope on record, 1 s average here"
    )


@pytest.fixture(scope="module")
def recorded(make: SimpleNamespace) -> dict[str, Any]:
    """Launches of one H200 as measurements: "aa" unchanged code, "g3" with 3 % of extra matmuls, and others."""
    path = Path(__file__).parents[1] / "data" / "h200_mb2_launches.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        row["tag"]: make.gpu(
            {
                "throughput": 8192 / (statistics.median(row["step_ms"]) / 1e3),
                "energy_per_token": row["energy_counter_delta_j"] / (8192 * 40),
                "mean_power": row["energy_counter_delta_j"] / row["window_s"],
                "peak_memory": row["peak_memory_gib"] * 2**30,
            }
        )
        for row in rows
    }


def test_unchanged_recorded_launches_always_pass(make: SimpleNamespace, recorded: dict[str, Any]) -> None:
    """Every choice of three baseline launches against every other three: no false alarm, not even a breach."""
    unchanged = [launch for tag, launch in recorded.items() if tag.startswith("aa_")]
    for chosen in itertools.combinations(range(len(unchanged)), 3):
        rest = [launch for index, launch in enumerate(unchanged) if index not in chosen]
        record = make.baseline([unchanged[index] for index in chosen])
        assert make.decide([rest[:3]], record).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("tag", "red"),
    [
        ("g3_2", ["energy_per_token", "throughput"]),  # 3 extra matmuls a step, +3.8 %
        ("unfused", ["energy_per_token", "mean_power", "throughput"]),  # another optimizer, the GPU waits
    ],
)
def test_recorded_slowdowns_turn_red(make: SimpleNamespace, recorded: dict[str, Any], tag: str, red: list[str]) -> None:
    """Real slowdowns of an H200, of the size that people chase, against real launches of unchanged code."""
    record = make.baseline([recorded[tag] for tag in ("aa_1", "aa_2", "aa_3")])
    assert isinstance(make.decide([[recorded[tag]]], record, tier_name="nightly", first_launches=1), NeedMore)
    judgement = make.decide([[recorded[tag]] * 3] * 2, record)
    assert judgement.verdict is Verdict.REGRESSION
    assert sorted(row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION) == red


def test_hidden_host_sleep_is_no_regression(make: SimpleNamespace, recorded: dict[str, Any]) -> None:
    """2 ms of host time a step that the GPU never waited for cost nobody anything."""
    record = make.baseline([recorded[tag] for tag in ("aa_1", "aa_2", "aa_3")])
    assert make.decide([[recorded["host2ms"]] * 3], record).verdict is Verdict.PASS
