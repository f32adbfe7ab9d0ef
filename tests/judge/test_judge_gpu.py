"""The policy on GPUs: each metric's rule, confirmation, and what withholds a verdict."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.judge.tolerances import CPU, CPU_REQUIRED, GPU
from pytest_charllm.records import METRICS, TIERS, Finding, Judgement, NeedMore, Validity, Verdict

PASS, RED, BETTER = Verdict.PASS, Verdict.REGRESSION, Verdict.IMPROVED


def test_tables_cover_what_tiers_require() -> None:
    """A required metric without a tolerance could never withhold anything."""
    assert set(GPU) | set(CPU) <= set(METRICS)
    assert set(CPU_REQUIRED) <= set(CPU)
    for (_, is_cpu), tier in TIERS.items():
        assert set(tier.required) <= set(CPU if is_cpu else GPU)


def test_unchanged_passes_and_states_its_power(make: SimpleNamespace) -> None:
    """A pass that does not say what it would have seen claims too much."""
    judgement = make.decide([[make.gpu({"throughput": 64256.0})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is PASS
    assert judgement.because == "throughput +0.4 % (tolerance 2.6 %, would have seen 3.9 %)"
    assert make.row(judgement, "throughput").reason == "noise provisional: 1 of 8 runs on record"
    assert judgement.launches == 3
    assert not judgement.confirmed


def test_stack_diff_names_what_changed(make: SimpleNamespace) -> None:
    """The new driver is the first suspect: it has to stand beside the number."""
    judgement = make.decide([[make.gpu()] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.stack_diff == (("driver", "575", "580"),)


def test_first_round_is_filled_up_first(make: SimpleNamespace) -> None:
    """One launch of three is not a round yet, and its noise must not ask for a confirmation."""
    record = make.baseline([make.gpu()] * 3)
    slow = make.gpu({"throughput": 60000.0})
    need = make.decide([[slow]], record)
    assert (need.launches, need.cool_to_c) == (2, {})
    need = make.decide([[slow], [slow, slow]], record)
    assert need.reason.startswith("to be confirmed: throughput -6.2 %")
    assert make.decide([[slow], [slow, slow], [slow] * 3], record).verdict is RED


def test_breach_asks_for_cool_fresh_launches(make: SimpleNamespace) -> None:
    """A confirmation from a hot card would confirm the heat."""
    record = make.baseline([make.gpu(start_c=28.0), make.gpu(start_c=30.0), make.gpu(start_c=41.0)])
    slow = make.gpu({"throughput": 60000.0}, start_c=44.0)
    need = make.decide([[slow] * 3], record)
    assert isinstance(need, NeedMore)
    assert (need.launches, need.cool_to_c) == (3, {"GPU-0": 30.0})
    elsewhere = make.gpu({"throughput": 60000.0}, uuid="GPU-7", start_c=44.0)
    assert make.decide([[elsewhere] * 3], record).cool_to_c == {"GPU-7": 44.0}


def test_incomplete_confirmation_is_completed(make: SimpleNamespace) -> None:
    """Two of three confirming launches must not decide, nor start over."""
    slow = make.gpu({"throughput": 60000.0})
    need = make.decide([[slow] * 3, [slow] * 2], make.baseline([make.gpu()] * 3))
    assert need.launches == 1


def test_speed_of_a_gpu_is_always_judged(make: SimpleNamespace) -> None:
    """Only on a CPU may a scenario be held to its checks alone."""
    assert make.decide([[]], make.baseline([make.gpu()] * 3), speed=False).launches == 3


def test_confirmed_breach_is_a_regression_with_both_rounds(make: SimpleNamespace) -> None:
    """Both numbers belong in the line: the second is the independent one."""
    record = make.baseline([make.gpu()] * 3)
    first, again = [make.gpu({"throughput": 60096.0})] * 3, [make.gpu({"throughput": 60224.0})] * 3
    judgement = make.decide([first, again], record)
    assert judgement.verdict is RED
    assert judgement.confirmed
    assert judgement.launches == 6
    assert judgement.because == "throughput -6.1 % (tolerance 2.6 %), confirmed -5.9 %"


def test_breach_that_does_not_repeat_passes_and_is_told(make: SimpleNamespace) -> None:
    """Never retried until green, but one bad round is no regression either."""
    record = make.baseline([make.gpu()] * 3)
    judgement = make.decide([[make.gpu({"throughput": 60000.0})] * 3, [make.gpu()] * 3], record)
    assert judgement.verdict is PASS
    assert make.row(judgement, "throughput").change == pytest.approx(0.0)
    assert make.row(judgement, "throughput").reason.startswith("first round -6.2 %, not confirmed")
    assert [finding.kind for finding in judgement.findings] == ["not-confirmed"]


def test_breach_of_the_second_round_alone_is_told_too(make: SimpleNamespace) -> None:
    """Another metric that moves only in the confirmation has breached once, not twice."""
    record = make.baseline([make.gpu()] * 3)
    judgement = make.decide([[make.gpu({"throughput": 60000.0})] * 3, [make.gpu({"peak_memory": 26e9})] * 3], record)
    assert judgement.verdict is PASS
    assert {finding.text for finding in judgement.findings} == {
        "throughput -6.2 % in the first round, +0.0 % in the confirmation",
        "peak memory +0.0 % in the first round, +4.0 % in the confirmation",
    }


@pytest.mark.parametrize(
    ("metric", "within", "beyond"),
    [
        ("throughput", 64000 * 0.986, 64000 * 0.984),
        ("energy_per_token", 0.0109 * 1.029, 0.0109 * 1.031),
        ("mean_power", 690 * 1.029, 690 * 1.031),
        ("core_temp_end", 66.9, 67.1),
        ("hbm_temp_end", 56.9, 57.1),
        ("margin_min", 20.1, 19.9),
        ("throttle_sw_thermal", 0.019, 0.021),
        ("throttle_hw", 0.0009, 0.0011),
        ("peak_power", 800 * 1.099, 800 * 1.101),
        ("peak_memory", 25e9 * 1.019, 25e9 * 1.021),
        ("compile_time", 19.1, 19.3),
    ],
)
def test_each_metric_has_its_own_floor(make: SimpleNamespace, metric: str, within: float, beyond: float) -> None:
    """One tolerance for all is either blind for throughput or red every night for temperature."""
    record = make.record([[64000.0] * 3] * 8)
    assert make.decide([[make.gpu({metric: within})] * 3] * 2, record).verdict is PASS
    judgement = make.decide([[make.gpu({metric: beyond})] * 3] * 2, record)
    assert judgement.verdict is RED
    assert [row.metric for row in judgement.metrics if row.verdict is RED] == [metric]


def test_short_compile_needs_five_seconds(make: SimpleNamespace) -> None:
    """Half of a short compile more is nothing that anybody waits for."""
    record = make.baseline([make.gpu({"compile_time": 3.0})] * 3)
    assert make.decide([[make.gpu({"compile_time": 7.9})] * 3], record).verdict is PASS
    assert isinstance(make.decide([[make.gpu({"compile_time": 8.1})] * 3], record), NeedMore)


def test_compile_time_of_one_cold_launch_is_enough(make: SimpleNamespace) -> None:
    """The compiler's cache is cold once a run: most launches have no compile time."""
    warm = make.gpu({"compile_time": None})
    need = make.decide([[make.gpu({"compile_time": 30.0}), warm, warm]], make.baseline([make.gpu(), warm, warm]))
    assert need.reason == "to be confirmed: compile time +150.0 %"


def test_improvement_needs_no_confirmation(make: SimpleNamespace) -> None:
    """It passes, and asks for a fresh baseline so that the gain is held."""
    judgement = make.decide([[make.gpu({"throughput": 66000.0})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is BETTER
    assert judgement.because.startswith("throughput +3.1 % (tolerance 2.6 %): better than on record")


def test_worst_metric_is_told_first(make: SimpleNamespace) -> None:
    """By tolerances, not by percent: 4 % of memory are more than 5 % of energy."""
    slow = make.gpu({"energy_per_token": 0.0109 * 1.05, "peak_memory": 26e9, "throughput": 63000.0})
    judgement = make.decide([[slow] * 3] * 2, make.record([[64000.0] * 3] * 8))
    told = [part.split(" +")[0].split(" -")[0] for part in judgement.because.split("; ") if "tolerance" in part]
    assert told == ["peak memory", "energy per token", "throughput"]


@pytest.mark.parametrize(
    ("throughput", "power", "verdict"),
    [
        (1.00, 1.05, RED),  # hungrier for the same work
        (1.05, 1.05, PASS),  # more work for more power
        (1.00, 0.95, RED),  # a sensor gone wrong, or less power by a change that somebody has to accept
        (1.05, 0.95, PASS),  # more work for less power: energy per token says so
        (0.95, 0.95, RED),  # a stalled GPU draws less
    ],
)
def test_power_is_read_with_throughput(
    make: SimpleNamespace, throughput: float, power: float, verdict: Verdict
) -> None:
    """Watts alone do not tell a gain from a stall."""
    moved = make.gpu({"throughput": 64000 * throughput, "mean_power": 690 * power})
    judgement = make.decide([[moved] * 3] * 2, make.baseline([make.gpu()] * 3))
    assert make.row(judgement, "mean_power").verdict is verdict


def test_power_of_another_card_has_a_wider_band(make: SimpleNamespace) -> None:
    """Two boards' sensors differ by more than one board from itself."""
    record = make.baseline([make.gpu()] * 3)
    other = make.gpu({"mean_power": 690 * 1.05}, uuid="GPU-7")
    judgement = make.decide([[other] * 3], record)
    assert judgement.verdict is PASS
    assert make.row(judgement, "mean_power").tolerance == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"uuid": "GPU-7"}, "on record from another card"),
        ({"start_c": 34.0}, "started at 34 degC, on record 30 degC"),
    ],
)
def test_temperature_of_another_card_or_start_is_not_judged(
    make: SimpleNamespace, fields: dict[str, object], reason: str
) -> None:
    """Another card, or a warmer room, is no regression, and no reason to withhold a pass."""
    hot = make.gpu({"core_temp_end": 75.0, "margin_min": 5.0}, **fields)
    judgement = make.decide([[hot] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is PASS
    assert make.row(judgement, "core_temp_end").verdict is Verdict.NOT_JUDGED
    assert reason in make.row(judgement, "core_temp_end").reason
    assert make.row(judgement, "margin_min").verdict is PASS


def test_temperature_is_held_against_launches_of_its_start(make: SimpleNamespace) -> None:
    """The first launch of a night starts cold and ends cooler than the rest."""
    record = make.baseline(
        [make.gpu({"core_temp_end": 56.0}, start_c=26.0), *[make.gpu({"core_temp_end": 63.0}, start_c=41.0)] * 2]
    )
    judgement = make.decide([[make.gpu({"core_temp_end": 62.5}, start_c=26.0)] * 3] * 2, record)
    assert make.row(judgement, "core_temp_end").reference == 56.0
    assert judgement.verdict is RED


def test_temperatures_need_every_device_to_start_alike(make: SimpleNamespace) -> None:
    """One of two that starts hot ends hot: no regression of the other's, and no reason to believe the mean."""
    pair = {"device_uuids": ("GPU-0", "GPU-1")}
    recorded = make.gpu(**pair, start_temp_c={"GPU-0": 30.0, "GPU-1": 30.0})
    hot = make.gpu({"core_temp_end": 75.0}, **pair, start_temp_c={"GPU-0": 30.0, "GPU-1": 45.0})
    judgement = make.decide([[hot] * 3], make.baseline([recorded] * 3))
    assert make.row(judgement, "core_temp_end").verdict is Verdict.NOT_JUDGED
    assert "started at 45 degC, on record 30 degC" in make.row(judgement, "core_temp_end").reason


@pytest.mark.parametrize(("metric", "value"), [("margin_min", 0.0), ("margin_min", -3.0), ("throttle_hw", 0.002)])
def test_absolute_limits_hold_whatever_is_on_record(make: SimpleNamespace, metric: str, value: float) -> None:
    """A baseline taken on a throttling card must not make throttling normal."""
    bad = make.gpu({metric: value}, uuid="GPU-7")
    for record in (make.baseline([make.gpu({metric: value})] * 3), make.baseline([make.gpu()] * 3), None):
        assert isinstance(make.decide([[bad] * 3], record), NeedMore)
        judgement = make.decide([[bad] * 3] * 2, record)
        assert judgement.verdict is RED
        assert judgement.because.startswith(metric.replace("_", " "))
        assert "limit" in judgement.because


def test_power_cap_only_informs(make: SimpleNamespace) -> None:
    """A card at its power limit is ordinary; a change of its share is worth a line."""
    judgement = make.decide([[make.gpu({"throttle_power_cap": 0.7})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is PASS
    assert [(finding.kind, finding.text) for finding in judgement.findings] == [
        ("moved", "throttle power cap -28.0 points")
    ]


@pytest.mark.parametrize("metric", TIERS["nightly", False].required)
def test_required_metric_without_evidence_withholds_pass(make: SimpleNamespace, metric: str) -> None:
    """A sampler that died must not make the night green."""
    judgement = make.decide([[make.gpu({metric: None})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because == f"{metric.replace('_', ' ')}: not read"


def test_other_metric_without_evidence_is_only_not_judged(make: SimpleNamespace) -> None:
    """Optional sensors differ from machine to machine."""
    judgement = make.decide([[make.gpu({"peak_memory": None})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is PASS
    assert make.row(judgement, "peak_memory").verdict is Verdict.NOT_JUDGED


def test_minority_of_launches_is_no_evidence(make: SimpleNamespace) -> None:
    """One lucky launch of three must not speak for the round."""
    launches = [make.gpu(), make.gpu({"throughput": None}), make.gpu({"throughput": None})]
    judgement = make.decide([launches], make.baseline([make.gpu()] * 3))
    assert judgement.because == "throughput: measured in 1 of 3 launches"


def test_confirmation_without_evidence_is_inconclusive(make: SimpleNamespace) -> None:
    """A breach that could not be looked at again is neither confirmed nor cleared."""
    rounds = [[make.gpu({"throughput": 60000.0})] * 3, [make.gpu({"throughput": None})] * 3]
    judgement = make.decide(rounds, make.baseline([make.gpu()] * 3))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "first round -6.2 %, not confirmed" in judgement.because


def test_no_baseline_lists_what_was_measured(make: SimpleNamespace) -> None:
    """A silent pass on a new runner would be the default that nobody notices."""
    assert make.decide([[make.gpu()]], None).launches == 2
    judgement = make.decide([[make.gpu()] * 3], None)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert judgement.because == "nothing on record for h200-sxm 1x1"
    assert make.row(judgement, "throughput").verdict is Verdict.NO_BASELINE
    assert make.row(judgement, "throughput").value == 64000.0
    assert judgement.stack_diff == ()


def test_incomparable_baseline_names_the_difference(make: SimpleNamespace) -> None:
    """A lowered power limit explains every slow number; it is no regression of the software."""
    here = replace(make.comparable(), power_limit_w=600.0)
    judgement = make.decide([[make.gpu()] * 3], make.baseline([make.gpu()] * 3), comparable=here)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert judgement.because == "the baseline is not comparable: power_limit_w: 700.0 on record, 600.0 here"


def test_invalid_launch_makes_all_invalid(make: SimpleNamespace) -> None:
    """What was disturbed is neither red nor green."""
    bad = replace(make.gpu(), validity=Validity.INVALID, reason="device lost", launch_id="l2")
    judgement = make.decide([[make.gpu(), bad, make.gpu()]], make.baseline([make.gpu()] * 3))
    assert (judgement.verdict, judgement.because) == (Verdict.INVALID, "l2: device lost")


def test_more_than_the_peak_is_invalid(make: SimpleNamespace) -> None:
    """No GPU does more than its peak: the clock or the formula is wrong."""
    judgement = make.decide([[make.gpu({"mfu": 1.2})] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.verdict is Verdict.INVALID
    assert "MFU 1.20 of causal_half" in judgement.because


def test_power_limit_that_changes_in_the_run_is_invalid(make: SimpleNamespace) -> None:
    """The median of launches under two limits belongs to neither."""
    launches = [make.gpu(), make.gpu(), make.gpu(power_limit_w=500.0)]
    judgement = make.decide([launches], make.baseline([make.gpu()] * 3))
    assert judgement.because == "the power limit changed between launches: 500 W and 700 W"


def test_findings_of_launches_are_told_once(make: SimpleNamespace) -> None:
    """Three launches at the power limit are one line, not three."""
    launches = [make.gpu(findings=(Finding(kind="power-capped", text=f"{n} W"),)) for n in (691, 692)]
    judgement = make.decide([[*launches, make.gpu()]], make.baseline([make.gpu()] * 3))
    assert judgement.findings == (Finding(kind="power-capped", text="691 W (in 2 of 3 launches)"),)


def test_asked_number_of_launches_replaces_the_tiers(make: SimpleNamespace) -> None:
    """Whoever asks for one launch is not made to wait for three."""
    record = make.baseline([make.gpu()] * 3)
    assert isinstance(make.decide([[make.gpu()]], record, first_launches=1), Judgement)
    assert make.decide([[make.gpu()]], record, first_launches=5).launches == 4
