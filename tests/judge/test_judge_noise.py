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
from msgspec.structs import replace

from pytest_charllm.judge.agreement import agreement
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.noise import Band, band, robust_sigma, would_have_seen
from pytest_charllm.judge.tolerances import Tolerance
from pytest_charllm.records import NeedMore, Verdict, tier

RULE = Tolerance(floor=0.015, cap=0.08, prior_sigma=0.005)


def spread(sigma: float) -> list[float]:
    """Nine values around 1 whose robust standard deviation is `sigma`: their median absolute deviation is two steps."""
    return [1 + (i - 4) * sigma / (2 * 1.4826) for i in range(9)]


def test_few_launches_leave_the_floor() -> None:
    """The spread of three launches is mostly luck; a lucky calm must not tighten the gate, nor a bad night open it."""
    assert band(RULE, [0.9, 1.0, 1.1], relative=True) == Band(0.015, 0.005, provisional=True, unreliable=False)


def test_many_noisy_launches_widen_it_up_to_the_cap() -> None:
    """Noise may widen a tolerance, but past the cap the test is unreliable: noise must not buy a pass."""
    assert band(RULE, spread(0.002), relative=True).tolerance == pytest.approx(0.015)
    wide = band(RULE, spread(0.01), relative=True)
    assert wide.tolerance == pytest.approx(0.035)
    assert not wide.unreliable
    assert not wide.provisional
    assert band(RULE, spread(0.03), relative=True).unreliable


def test_spread_is_robust() -> None:
    """One launch on a bad night must not triple the tolerance of all nights after."""
    values = [1.0, 1.001, 0.999, 1.002, 0.998, 1.001, 0.999, 1.0]
    assert robust_sigma([*values, 2.0], relative=True) < 0.003
    assert robust_sigma([60.0, 61.0, 62.0], relative=False) == pytest.approx(1.4826)


def test_unreliable_record_withholds_pass_but_not_red(make: SimpleNamespace) -> None:
    """A record that scatters by percents cannot say that nothing moved; a third less is a third less."""
    record = make.baseline([make.gpu({"throughput": 64000 * value}) for value in spread(0.03)])
    judgement = make.decide([[make.gpu({"throughput": 62000.0})] * 3], record)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "unreliable" in judgement.because
    assert [finding.kind for finding in judgement.findings] == ["unreliable"]
    assert make.decide([[make.gpu({"throughput": 42000.0})] * 3] * 2, record).verdict is Verdict.REGRESSION


def test_power_promised_is_power_kept() -> None:
    """The number on every passing line: a change of that size has to be called nine times in ten."""
    sigma, launches, recorded = 0.005, 3, 9
    shift = would_have_seen(Band(0.015, sigma, provisional=False, unreliable=False), launches, launches, recorded)
    assert shift is not None
    chance = random.Random(1)

    def median(count: int, mean: float) -> float:
        return statistics.median(chance.gauss(mean, sigma) for _ in range(count))

    called = 0
    for _ in range(4000):
        reference = median(recorded, 1.0)
        called += all(median(launches, 1.0 - shift) / reference - 1 < -0.015 for _ in range(2))
    assert called / 4000 == pytest.approx(0.9, abs=0.03)


def test_power_is_not_promised_where_noise_is_not_known() -> None:
    """A made-up number would be read as a measured one."""
    assert would_have_seen(Band(5.0, None, provisional=True, unreliable=False), 3, 3, 3) is None


def test_more_launches_see_less() -> None:
    """Launches that buy nothing would be a waste of the night."""
    allowed = Band(0.015, 0.005, provisional=True, unreliable=False)
    seen = [would_have_seen(allowed, count, count, 8) for count in (1, 3, 5, 9)]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 4


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
        ("item_3", ["throughput"]),  # a host sync a step, +1.9 %
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
