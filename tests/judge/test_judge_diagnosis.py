"""Why it moved: each rule with its evidence, and what is said where evidence is missing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.judge.diagnosis.node import suspects
from pytest_charllm.judge.diagnosis.rules import NOT_TIMED
from pytest_charllm.records import Baseline, Finding, Judgement, Measurement, Stack, Value, Verdict

HERE = "GPU-7cd69a69-1f3d-32e1-9e8e-d34d8b1e49ab"
FOUR = (HERE, "GPU-b", "GPU-c", "GPU-d")
EVIDENCE = {
    "sm_clock": 1700.0, "matmul_time": 0.0016, "copy_time": 0.0006, "throttle_hw_brake": 0.0,
    "throttle_hw_thermal": 0.0,
}  # fmt: skip
SLOWER = {"throughput": 64000.0 * 0.939, "energy_per_token": 0.0110}
UNCHANGED: Mapping[str, float | None] = MappingProxyType({})
WORK = {"parameters": "1,104,218,112", "attention": "flash"}
ALIKE = {"matmul_time": (0.0016,) * 4, "sm_clock": (1700.0,) * 4, "throttle_sw_thermal": (0.0,) * 4}


def here(
    make: SimpleNamespace, changes: Mapping[str, float | None] = MappingProxyType({}), **fields: Any
) -> Measurement:
    plain = {"window_s": 60.0, "workload": WORK, "stack": Stack(torch="2.11.0", driver="575"), "uuid": HERE}
    return make.gpu(EVIDENCE | dict(changes), **(plain | fields))


def on_record(make: SimpleNamespace, work: dict[str, str] = WORK, **fields: Any) -> Baseline:
    baseline = make.baseline([here(make, **fields)] * 3, workload=work)
    samples = tuple(replace(sample, per_rank=fields.get("per_rank", {})) for sample in baseline.reference.samples)
    return replace(baseline, stacks=(replace(baseline.reference, samples=samples),))


def judged(make: SimpleNamespace, launch: Measurement, baseline: Baseline | None = None) -> Judgement:
    return make.decide([[launch] * 3, [launch] * 3], baseline or on_record(make))


def first(judgement: Judgement) -> str:
    assert judgement.verdict is Verdict.REGRESSION, judgement
    return judgement.diagnosis[0].text


def test_only_the_driver_changed(make: SimpleNamespace) -> None:
    """The commonest question after a night with an update; without a clock the cause is not guessed."""
    launch = make.gpu({"throughput": 64000.0 * 0.95}, stack=Stack(torch="2.11.0", driver="580"))
    judgement = make.decide([[launch] * 3, [launch] * 3], make.baseline([make.gpu()] * 3))
    assert judgement.stack_diff == (("driver", "575", "580"),)
    assert first(judgement).startswith("-5.0 % tokens/s; SM clock not known here")
    assert first(judgement).endswith("cause not known; changed: driver 575 -> 580")


def test_new_driver_with_all_evidence_is_software(make: SimpleNamespace) -> None:
    """Clock, watts and the card's own kernels as before leave only what was updated."""
    launch = here(make, SLOWER, stack=Stack(torch="2.11.0", driver="580"))
    assert first(judged(make, launch)) == (
        "-6.1 % tokens/s; SM clock +0.0 %, mean power +0.0 %, matmul calibration +0.0 %: "
        "software: kernels or framework; changed: driver 575 -> 580"
    )


def test_cooling_with_the_card_named(make: SimpleNamespace) -> None:
    """A throttled card reported as slow software costs somebody a week."""
    hot = {"sm_clock": 1600.0, "throttle_sw_thermal": 41 / 60, "matmul_time": 0.0017}
    ranks = ALIKE | {"throttle_sw_thermal": (0.0, 0.0, 0.0, 41 / 60)}
    uuids = ("GPU-b", "GPU-c", "GPU-d", HERE)
    fields = {"device_uuids": uuids, "per_rank": ALIKE, "start_temp_c": {}}
    launch = here(make, SLOWER | hot, **(fields | {"per_rank": ranks}))
    judgement = judged(make, launch, on_record(make, **fields))
    assert first(judgement) == (
        "-6.1 % tokens/s; SM clock -5.9 %, thermal slowdown 41 s of 60 s: cooling, GPU-7cd6... slot 3"
    )
    assert judgement.diagnosis[0].devices == (HERE,)
    assert "clock" not in {said.rule for said in judgement.diagnosis}


@pytest.mark.parametrize(
    ("changes", "rule", "cause"),
    [
        ({"throttle_hw_brake": 0.2, "throttle_hw": 0.2}, "hw_brake", "power supply, GPU-7cd6... slot 0"),
        ({"matmul_time": 0.0017}, "slow-card", "slow card, not the framework, GPU-7cd6... slot 0"),
        ({"sm_clock": 1600.0}, "power-cap", "power limit, more power a cycle of the step; no software changed"),
        (
            {"sm_clock": 1600.0, "throttle_power_cap": 0.0},
            "clock",
            "a lower clock that nothing throttles: application clocks or clock limits; no software changed",
        ),
        ({"all_reduce_time": 0.0031}, "link", "links or the collective library; no software changed"),
        (
            {"mean_power": 650.0},
            "waiting",
            f"the GPU waited for host, input or communication ({NOT_TIMED}); no software changed",
        ),
        (
            {"matmul_time": None},
            "software",
            "software, or a card that is slower at the same clock; no software changed",
        ),
    ],
)
def test_slower_for_one_reason(make: SimpleNamespace, changes: dict[str, float | None], rule: str, cause: str) -> None:
    """Two rules that both claim a cause, or one with its sign turned, send people to the wrong place."""
    record = on_record(make, changes={"all_reduce_time": 0.0028})
    judgement = judged(make, here(make, {"all_reduce_time": 0.0028} | SLOWER | changes), record)
    assert first(judgement)
    assert [(said.rule, said.cause) for said in judgement.diagnosis] == [(rule, cause)]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"sm_clock": 1680.0, "matmul_time": 0.001625}, "software"),
        ({"sm_clock": 1680.0, "mean_power": 650.0}, "waiting"),
        ({"matmul_time": 0.00165}, "software"),
        ({"matmul_time": 0.00168}, "slow-card"),
        ({"sm_clock": 1600.0}, "power-cap"),
    ],
)
def test_what_explains_less_than_half_of_a_loss_is_in_nobodys_way(
    make: SimpleNamespace, changes: dict[str, float | None], rule: str
) -> None:
    """A tenth fewer tokens with 1.2 % of the clock gone was no clock's fault, and no software's either."""
    slower = {"throughput": 64000.0 * 0.91, "energy_per_token": 0.0119}
    assert [said.rule for said in judged(make, here(make, slower | changes)).diagnosis] == [rule]


TRACED = {"compute_time": 0.110, "communication_time": 0.020, "exposed_communication": 0.010, "host_gap": 0.008}
"""A step of 128 ms; 6.1 % fewer tokens/s are 8.3 ms more."""


def traced(make: SimpleNamespace, **changes: float) -> Measurement:
    values = {metric: Value(value=number, unit="s") for metric, number in (TRACED | changes).items()}
    return replace(here(make), values=values)


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"exposed_communication": 0.018, "communication_time": 0.021}, ["exposed"]),
        ({"host_gap": 0.016}, ["host-gap"]),
        ({"exposed_communication": 0.015, "host_gap": 0.013}, ["exposed", "host-gap"]),
        ({"exposed_communication": 0.012, "host_gap": 0.010}, ["waiting"]),
        ({"exposed_communication": 0.002, "compute_time": 0.126}, ["waiting"]),
        ({}, ["waiting"]),
    ],
)
def test_what_a_trace_says_of_a_gpu_that_waited(
    make: SimpleNamespace, changes: dict[str, float], rules: list[str]
) -> None:
    """Lost overlap and a slow host look alike to every sensor: the clock is there, the watts are not."""
    launch, record = here(make, SLOWER | {"mean_power": 650.0}), on_record(make)
    known = replace(record, stacks=(replace(record.reference, traced=TRACED),))
    judgement = make.decide([[launch] * 3, [launch] * 3], known, aside=traced(make, **changes))
    assert [said.rule for said in judgement.diagnosis] == rules
    assert all(NOT_TIMED not in said.text for said in judgement.diagnosis)


TWO = (HERE, "GPU-b")
WAITS = {
    "compute_time": (0.118, 0.110),
    "communication_time": (0.020, 0.028),
    "exposed_communication": (0.010, 0.018),
    "host_gap": (0.008, 0.008),
}
"""The first of two ranks computes 8 ms longer, and the other waits for it."""


def test_a_late_rank_is_named_by_its_trace(make: SimpleNamespace) -> None:
    """On GPUs every rank's step takes as long as the late one's: lost overlap was blamed, which nobody had lost."""
    fields = {"device_uuids": TWO, "start_temp_c": {}}
    launch, record = here(make, SLOWER, **fields), on_record(make, **fields)
    known = replace(record, stacks=(replace(record.reference, traced=TRACED),))
    means = {metric: sum(values) / 2 for metric, values in WAITS.items()}
    aside = replace(traced(make, **means), per_rank=WAITS)
    judgement = make.decide([[launch] * 3, [launch] * 3], known, aside=aside)
    (said,) = judgement.diagnosis
    assert (said.rule, said.devices) == ("slow-rank", (HERE,))
    assert said.text == (
        "-6.1 % tokens/s; communication of a traced step, waiting included, 28.0 ms on the others, 20.0 ms on rank 0: "
        "one slow rank, GPU-7cd6... slot 0"
    )


def test_lost_overlap_is_told_beside_a_late_rank(make: SimpleNamespace) -> None:
    """The late rank waits for nobody: what is exposed on it is exposed for another reason."""
    fields = {"device_uuids": TWO, "start_temp_c": {}}
    launch, record = here(make, SLOWER, **fields), on_record(make, **fields)
    known = replace(record, stacks=(replace(record.reference, traced=TRACED),))
    both = WAITS | {"exposed_communication": (0.018, 0.026)}
    aside = replace(traced(make, exposed_communication=0.022), per_rank=both)
    judgement = make.decide([[launch] * 3, [launch] * 3], known, aside=aside)
    assert [said.rule for said in judgement.diagnosis] == ["slow-rank", "exposed"]
    assert "exposed communication +8.0 ms a step (10.0 ms on record)" in judgement.diagnosis[1].text


def test_a_trace_says_which_rank_is_slow_before_anything_is_on_record(make: SimpleNamespace) -> None:
    """A slow card must not go on record as what is normal without a word."""
    launch = here(make, device_uuids=TWO, start_temp_c={})
    said_aside = Finding(kind="slow-rank", text="rank 0 on GPU-a: compute time")
    aside = replace(traced(make), per_rank=WAITS, findings=(said_aside,))
    judgement = make.decide([[launch] * 3], None, aside=aside)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert [said.cause for said in judgement.diagnosis] == ["one slow rank, GPU-7cd6... slot 0"]
    assert said_aside in judgement.findings


def test_a_trace_without_one_on_record_says_nothing(make: SimpleNamespace) -> None:
    """Every step has some gaps: without a before they explain no loss."""
    launch = here(make, SLOWER | {"mean_power": 650.0})
    judgement = make.decide([[launch] * 3, [launch] * 3], on_record(make), aside=traced(make, host_gap=0.1))
    assert [said.rule for said in judgement.diagnosis] == ["waiting"]
    assert NOT_TIMED in judgement.diagnosis[0].text


@pytest.mark.parametrize(
    ("new_level", "rule"), [(False, "host-gap"), (True, "waiting")], ids=["it changed no speed", "another level"]
)
def test_a_trace_of_older_software_holds_until_the_level_moves(
    make: SimpleNamespace, new_level: bool, rule: str
) -> None:
    """A night that passes traces nothing: with each new driver that was accepted the trace on record was lost."""
    launch, record = here(make, SLOWER | {"mean_power": 650.0}), on_record(make)
    older = replace(record.reference, run_id="older", stack=Stack(torch="2.11.0", driver="570"), traced=TRACED)
    known = replace(record, stacks=(older, replace(record.reference, new_level=new_level)))
    judgement = make.decide([[launch] * 3, [launch] * 3], known, aside=traced(make, host_gap=0.016))
    assert [said.rule for said in judgement.diagnosis] == [rule]


def test_a_gap_that_the_loss_does_not_need_is_no_cause(make: SimpleNamespace) -> None:
    """Compute at a lower clock took the time; the gap beside it was there before."""
    launch, record = here(make, SLOWER | {"sm_clock": 1600.0}), on_record(make)
    known = replace(record, stacks=(replace(record.reference, traced=TRACED),))
    aside = traced(make, compute_time=0.117, host_gap=0.009)
    judgement = make.decide([[launch] * 3, [launch] * 3], known, aside=aside)
    assert [said.rule for said in judgement.diagnosis] == ["power-cap"]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"energy_per_token": 0.0109 * 1.05, "mean_power": 700.0}, "power"),
        ({"core_temp_end": 75.0}, "cooling"),
        ({"peak_memory": 27e9}, "memory"),
        ({"compile_time": 60.0}, "compile"),
    ],
)
def test_what_moved_beside_speed(make: SimpleNamespace, changes: dict[str, float | None], rule: str) -> None:
    """A rule about speed must not answer for a scenario that is as fast as ever."""
    assert [said.rule for said in judged(make, here(make, changes)).diagnosis] == [rule]


def test_another_kernel_is_not_called_slower(make: SimpleNamespace) -> None:
    """Attention that fell back is other work; a line about clocks would hide that."""
    judgement = judged(make, here(make, SLOWER | {"sm_clock": 1600.0}, workload=WORK | {"attention": "math"}))
    assert [said.rule for said in judgement.diagnosis] == ["workload"]
    assert judgement.because.startswith("the workload changed: attention flash on record, math here; ")


def test_another_size_is_not_compared(make: SimpleNamespace) -> None:
    """A larger model is slower, and nothing is wrong with that."""
    baseline = on_record(make)
    sizes = {"parameters": "1,104,218,112"}
    baseline = replace(baseline, comparable=replace(baseline.comparable, workload=sizes))
    here_now = replace(make.comparable(), workload={"parameters": "2,000,000,000"})
    judgement = make.decide([[here(make, SLOWER)] * 3], baseline, comparable=here_now)
    assert judgement.verdict is Verdict.NO_BASELINE
    assert "workload of parameters: 1,104,218,112 on record, 2,000,000,000 here" in judgement.because


def test_one_slow_gpu_of_four_in_two_scenarios_is_the_node(make: SimpleNamespace) -> None:
    """Every scenario that a bad card runs in would be its own regression otherwise; one alone proves nothing."""
    fields = {"device_uuids": FOUR, "per_rank": ALIKE, "start_temp_c": {}}
    ranks = ALIKE | {"matmul_time": (0.0018, 0.0016, 0.0016, 0.00161)}
    slow = judged(make, here(make, SLOWER, **(fields | {"per_rank": ranks})), on_record(make, **fields))
    assert slow.diagnosis[0].cause == "one slow GPU, GPU-7cd6... slot 0"
    passing = judged(
        make, here(make, {"throughput": 63800.0}, **(fields | {"per_rank": ranks})), on_record(make, **fields)
    )
    assert passing.verdict is Verdict.PASS
    assert passing.diagnosis[0].devices == (HERE,)
    assert suspects([slow]) == ()
    found = suspects([slow, replace(passing, scenario_key="other")])
    assert [(suspect.uuid, len(suspect.keys)) for suspect in found] == [(HERE, 2)]
    assert found[0].text.endswith("so it is not the framework: one slow GPU, GPU-7cd6... slot 0")


def test_another_card_s_clock_names_nobody(make: SimpleNamespace) -> None:
    """An unchanged night on another pair: at the cap its clocks were 7 % below those on record at 2.8 % of the product,
    and after two scenarios a healthy card made the node suspect."""
    ranks = {"sm_clock": (1609.0, 1730.0), "matmul_time": (1.4110e-3, 1.3731e-3)}
    recorded = {"sm_clock": (1730.0, 1735.0), "matmul_time": (1.3731e-3, 1.3700e-3)}
    pair = {"device_uuids": ("GPU-C", "GPU-D"), "start_temp_c": {}}
    night = here(make, {}, **pair, per_rank=ranks)
    other = on_record(make, device_uuids=("GPU-A", "GPU-B"), start_temp_c={}, per_rank=recorded)
    unchanged = judged(make, night, other)
    assert unchanged.verdict is Verdict.PASS
    assert unchanged.diagnosis == ()
    assert suspects([unchanged, replace(unchanged, scenario_key="other")]) == ()
    turned = {"device_uuids": ("GPU-D", "GPU-C"), "start_temp_c": {}, "per_rank": {"sm_clock": (1730.0, 1609.0)}}
    assert judged(make, night, on_record(make, **turned)).diagnosis == (), "the same two cards, the other way round"
    its_own = judged(make, night, on_record(make, **pair, per_rank=recorded))
    assert its_own.diagnosis[0].cause == "one slow GPU, GPU-C... slot 0"


def test_slow_rank_on_a_cpu_against_its_own_record(make: SimpleNamespace) -> None:
    """The last stage of a pipeline always does more: only against its own record is that a difference."""
    record = make.baseline([make.cpu()] * 8, is_cpu=True)
    samples = tuple(replace(sample, per_rank={"cost_cpu": (6.0, 9.0)}) for sample in record.reference.samples)
    record = replace(record, stacks=(replace(record.reference, samples=samples),))

    def said(*costs: float) -> tuple[str, ...]:
        launch = make.cpu({"cost_cpu": 8.8}, per_rank={"cost_cpu": costs})
        judgement = make.decide_cpu([[launch], [launch] * 2], record)
        assert judgement.verdict is Verdict.REGRESSION
        return tuple(each.rule for each in judgement.diagnosis)

    assert said(6.6, 9.9) == ("software",)
    assert said(6.0, 10.8) == ("slow-rank", "software")


def test_a_calibration_names_no_rank_of_a_cpu(make: SimpleNamespace) -> None:
    """Beside other work one rank's core was 3 % the slower: with a tenth of extra work on both the README's own demo
    said "one slow rank"."""
    record = make.baseline([make.cpu()] * 8, is_cpu=True)
    samples = tuple(replace(sample, per_rank={"cost_cpu": (6.0, 6.0)}) for sample in record.reference.samples)
    record = replace(record, stacks=(replace(record.reference, samples=samples),))
    ranks = {"cost_cpu": (6.6, 6.62), "matmul_time": (0.00160, 0.00165)}
    launch = make.cpu({"cost_cpu": 8.8}, per_rank=ranks)
    judgement = make.decide_cpu([[launch], [launch] * 2], record)
    assert [each.rule for each in judgement.diagnosis] == ["software"]


def test_a_card_that_explains_less_than_half_is_not_the_cause(make: SimpleNamespace) -> None:
    """A tenth was lost, and one card's product takes 3.1 % longer than the other's."""
    fields = {"device_uuids": ("GPU-a", "GPU-b"), "per_rank": {"matmul_time": (0.00165, 0.00160)}, "start_temp_c": {}}
    slower = here(make, SLOWER | {"throughput": 0.9 * 64000.0}, **fields)
    assert "slow-rank" not in [each.rule for each in judged(make, slower, on_record(make, **fields)).diagnosis]


def test_no_diagnosis_where_nothing_is_wrong(make: SimpleNamespace) -> None:
    """A reason beside a green verdict would be read as a doubt."""
    assert judged(make, here(make)).diagnosis == ()


FACTORS = {"sm_clock": 0.9, "mean_power": 0.9, "matmul_time": 1.1, "copy_time": 1.1, "throttle_power_cap": 0.5}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    here_missing=st.sets(st.sampled_from(sorted(FACTORS))),
    never_recorded=st.sets(st.sampled_from(sorted(FACTORS))),
    changed=st.sets(st.sampled_from(sorted(FACTORS))),
)
def test_every_regression_has_a_reason_or_says_what_is_missing(
    make: SimpleNamespace, here_missing: set[str], never_recorded: set[str], changed: set[str]
) -> None:
    """Sensors come and go with drivers: no gap may raise, stay silent, or be called a cause."""
    plain = dict(make.GPU_VALUES) | EVIDENCE
    moved = {metric: plain[metric] * (FACTORS[metric] if metric in changed else 1) for metric in FACTORS}
    record = on_record(make, changes=dict.fromkeys(never_recorded))
    judgement = judged(make, here(make, SLOWER | moved | dict.fromkeys(here_missing)), record)
    assert judgement.diagnosis
    gone = here_missing | never_recorded
    rules = {said.rule for said in judgement.diagnosis}
    assert not ({"power-cap", "clock"} & rules and "sm_clock" in gone)
    assert not ("waiting" in rules and gone & {"sm_clock", "mean_power"})
    assert not ("slow-card" in rules and {"matmul_time", "copy_time"} <= gone)
    if "unknown" in rules:
        assert judgement.diagnosis[0].cause.startswith("cause not known")
