"""What is judged of a script: by tokens a second where they are known, by its step alone where not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.judge.policy import Policy
from pytest_charllm.judge.recordable import not_recordable
from pytest_charllm.judge.tolerances import BUSY
from pytest_charllm.records import Baseline, Measurement, NeedMore, Verdict, tier
from pytest_charllm.scenario import Layout, Scenario, Script

PASS, RED = Verdict.PASS, Verdict.REGRESSION
MARKED = Scenario(work=Script("train.py"), layout=Layout(dp=2))
LOGGED = Scenario(work=Script("train.py", log="megatron-lm"), layout=Layout(dp=2))
NO_TOKENS = {"throughput": None, "energy_per_token": None, "step_time": 0.2}


def decide(
    make: SimpleNamespace, rounds: Sequence[Sequence[Measurement]], record: Baseline | None, *,
    is_cpu: bool, scenario: Scenario = MARKED,
) -> Any:  # fmt: skip
    policy = Policy(tier("smoke" if is_cpu else "nightly", is_cpu), is_cpu=is_cpu)
    return policy.decide(scenario, record, make.comparable(is_cpu=is_cpu), rounds, None)


def cpu(make: SimpleNamespace, **changes: float | None) -> Measurement:
    plain = {"cost_cpu": None, "cost_wall": None, "step_cpu_time": 0.02, "step_time": 0.025, "throughput": 9000.0}
    return make.cpu({**plain, "busyness": 1.1, **changes})


def logged(make: SimpleNamespace, **changes: float | None) -> Measurement:
    """A log tells no CPU time of a step."""
    return cpu(make, step_cpu_time=None, **changes)


def test_step_stands_in_for_unknown_tokens_on_a_gpu(make: SimpleNamespace) -> None:
    """Without tokens there is no throughput and no energy per token; requiring them would withhold every PASS."""
    record = make.baseline([make.gpu(NO_TOKENS)] * 3)
    judgement = decide(make, [[make.gpu(NO_TOKENS)] * 3], record, is_cpu=False)
    assert judgement.verdict is PASS
    assert judgement.because.startswith("step time +0.0 % (tolerance")

    slow = make.gpu({**NO_TOKENS, "step_time": 0.21})
    judgement = decide(make, [[slow] * 3, [slow] * 3], record, is_cpu=False)
    assert judgement.verdict is RED
    assert judgement.because.startswith("step time +5.0 % (tolerance")


def test_known_tokens_are_judged_as_for_our_own_engines(make: SimpleNamespace) -> None:
    """A step that holds more tokens may take longer: tokens a second decide, the step only informs."""
    record = make.baseline([make.gpu({"step_time": 0.2})] * 3)
    judgement = decide(make, [[make.gpu({"step_time": 0.4})] * 3], record, is_cpu=False)
    assert judgement.verdict is PASS
    assert make.row(judgement, "step_time").reason == "informational"
    assert make.row(judgement, "energy_per_token").verdict is PASS


def test_log_needs_no_sensor_for_a_pass(make: SimpleNamespace) -> None:
    """A log does not say when its steps ran, so power and heat have no window; speed has all it needs."""
    blind = dict.fromkeys(("energy_per_token", "mean_power", "core_temp_end", "hbm_temp_end", "throttle_hw"))
    record = make.baseline([make.gpu(blind)] * 3)
    rounds = [[make.gpu(blind)] * 3]
    assert decide(make, rounds, record, is_cpu=False, scenario=LOGGED).verdict is PASS
    assert decide(make, rounds, record, is_cpu=False, scenario=MARKED).verdict is not PASS


def test_cpu_without_a_baseline_judges_nothing(make: SimpleNamespace) -> None:
    """There is no strict check that could pass in its place: green would say more than is known."""
    assert decide(make, [], None, is_cpu=True).launches == 5
    assert decide(make, [[cpu(make)] * 5], None, is_cpu=True).verdict is Verdict.NO_BASELINE


BUSY_HERE = {"busyness": 2.15, "step_time": 0.05, "throughput": 4500.0}


def test_cpu_time_of_a_busy_machine_is_no_breach(make: SimpleNamespace) -> None:
    """An unchanged script was a REGRESSION of +44 %, confirmed: the same work takes more CPU time beside others, and a
    script has no calibration that would share it. Nor is it worth two more launches."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    judgement = decide(make, [[cpu(make, step_cpu_time=0.0288, **BUSY_HERE)]], record, is_cpu=True)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    told = "step cpu time +44.0 %: machine busy (wall/CPU 2.15), which lengthens CPU time"
    assert judgement.because == told
    assert make.row(judgement, "step_cpu_time").reference == pytest.approx(0.02)


def test_cpu_time_of_a_machine_not_known_to_be_quiet(make: SimpleNamespace) -> None:
    """Nobody knows what lengthened it: "busyness of the machine not known, which lengthens CPU time" was no reason."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    judgement = decide(make, [[cpu(make, step_cpu_time=0.0288, busyness=None)]], record, is_cpu=True)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because == "step cpu time +44.0 %: busyness of the machine not known"


@pytest.mark.parametrize(
    ("cpu_s", "verdict", "because"),
    [
        (0.0204, PASS, "step cpu time +2.0 % (tolerance 10.0 %, would have seen 14.2 %)"),
        (0.016, Verdict.IMPROVED, "step cpu time -20.0 % (tolerance 10.0 %): better than on record"),
    ],
)
def test_cpu_time_of_a_busy_machine_can_be_good(
    make: SimpleNamespace, cpu_s: float, verdict: Verdict, because: str
) -> None:
    """Others only lengthen it: what is short all the same is short. Wall time says nothing there."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    judgement = decide(make, [[cpu(make, step_cpu_time=cpu_s, **BUSY_HERE)]], record, is_cpu=True)
    assert judgement.verdict is verdict
    assert judgement.because.startswith(because)
    assert make.row(judgement, "throughput").reason == "machine busy (wall/CPU 2.15)"


def test_cpu_time_of_a_quiet_machine_is_a_breach(make: SimpleNamespace) -> None:
    """What the rule for busy machines must not let go."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    slow = cpu(make, step_cpu_time=0.024)
    need = decide(make, [[slow]], record, is_cpu=True)
    assert isinstance(need, NeedMore)
    judgement = decide(make, [[slow], [slow] * 2], record, is_cpu=True)
    assert judgement.verdict is RED
    assert judgement.because == "step cpu time +20.0 % (tolerance 10.0 %), confirmed +20.0 %"


def test_a_busy_launch_of_a_round_is_taken_for_short(make: SimpleNamespace) -> None:
    """How long it would have been alone nobody knows: a breach has to stand whatever it was."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    slow, busy = cpu(make, step_cpu_time=0.024), cpu(make, step_cpu_time=0.03, **BUSY_HERE)
    assert isinstance(decide(make, [[slow, slow, busy]], record, is_cpu=True), NeedMore)
    judgement = decide(make, [[slow, slow, busy], [slow] * 2], record, is_cpu=True)
    assert judgement.verdict is RED
    assert judgement.because.startswith("step cpu time +20.0 %")

    judgement = decide(make, [[slow], [slow, busy]], record, is_cpu=True)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because == (
        "step cpu time +35.0 %: first round +20.0 %, not confirmed; machine busy in 1 of 2 launches (wall/CPU 2.15), "
        "which lengthens CPU time"
    )
    (said,) = [finding.text for finding in judgement.findings if finding.kind == "not-confirmed"]
    assert said.endswith(
        "in the confirmation (machine busy in 1 of 2 launches (wall/CPU 2.15), which lengthens CPU time)"
    )


def test_a_busy_record_makes_no_improvement(make: SimpleNamespace) -> None:
    """Five launches beside the same neighbour agree with each other, and every quiet run after them was IMPROVED. How
    much too long they are nobody knows, so no power is stated either."""
    record = make.baseline([cpu(make, step_cpu_time=0.03, **BUSY_HERE)] * 5, is_cpu=True)
    judgement = decide(make, [[cpu(make)]], record, is_cpu=True)
    assert judgement.verdict is PASS
    assert judgement.because == (
        "step cpu time -33.3 % (tolerance 10.0 %): on record from a busy machine (wall/CPU 2.15), which lengthens CPU "
        "time; put a quiet run on record in its place"
    )
    # Longer than even that is longer than it was.
    slow = cpu(make, step_cpu_time=0.036)
    assert decide(make, [[slow], [slow] * 2], record, is_cpu=True).verdict is RED


def test_cpu_time_is_held_against_quiet_launches(make: SimpleNamespace) -> None:
    """Where any are on record; the others may be too long."""
    busy = cpu(make, step_cpu_time=0.0215, **BUSY_HERE)
    record = make.baseline([cpu(make), cpu(make), busy, busy, busy], is_cpu=True)
    judgement = decide(make, [[cpu(make)]], record, is_cpu=True)
    assert make.row(judgement, "step_cpu_time").reference == pytest.approx(0.02)


shares = st.floats(0.5, 2.0)
ratios = st.floats(0.9, 5.0)
seen = st.tuples(shares, ratios)


@settings(deadline=None, max_examples=200)
@given(
    recorded=st.lists(seen, min_size=5, max_size=5),
    rounds=st.tuples(seen, seen, seen),
    more=st.tuples(*[st.floats(1.0, 3.0)] * 3),
    longer=st.tuples(*[st.floats(1.0, 2.0)] * 3),
)
def test_a_busier_machine_turns_nothing_red(
    make: SimpleNamespace, recorded: Any, rounds: Any, more: Any, longer: Any
) -> None:
    """The same launches beside more of others, who lengthen the CPU time of those that they make busy."""

    def launch(share: float, busyness: float) -> Measurement:
        return cpu(make, step_cpu_time=0.02 * share, busyness=busyness)

    def verdict(each: Sequence[tuple[float, float]]) -> Verdict:
        record = make.baseline([launch(*one) for one in recorded], is_cpu=True)
        first, *again = [launch(*one) for one in each]
        found = decide(make, [[first]], record, is_cpu=True)
        found = decide(make, [[first], again], record, is_cpu=True) if isinstance(found, NeedMore) else found
        return found.verdict  # type: ignore[no-any-return]

    beside = [
        (share * (slower if busyness * factor >= BUSY else 1.0), busyness * factor)
        for (share, busyness), factor, slower in zip(rounds, more, longer, strict=True)
    ]
    if verdict(rounds) is not RED:
        assert verdict(beside) is not RED


def test_wall_time_is_held_against_quiet_launches_alone(make: SimpleNamespace) -> None:
    """What was recorded beside other work is half as fast: against it, every slowdown would be an improvement."""
    busy = cpu(make, busyness=4.0, throughput=3000.0)
    record = make.baseline([cpu(make), cpu(make), busy, busy, busy], is_cpu=True)
    judgement = decide(make, [[cpu(make, throughput=7000.0)], [cpu(make, throughput=7000.0)] * 2], record, is_cpu=True)
    assert [row.metric for row in judgement.metrics if row.verdict is RED] == ["throughput"]
    assert make.row(judgement, "throughput").reference == pytest.approx(9000.0)


def test_log_on_a_quiet_cpu_is_judged_by_wall_time(make: SimpleNamespace) -> None:
    """A trainer that only logs must be able to be red, and green, on a CPU too."""
    record = make.baseline([logged(make)] * 5, is_cpu=True)
    assert decide(make, [[logged(make)]], record, is_cpu=True, scenario=LOGGED).verdict is PASS
    slow = logged(make, throughput=7000.0)
    judgement = decide(make, [[slow], [slow] * 2], record, is_cpu=True, scenario=LOGGED)
    assert judgement.verdict is RED
    assert judgement.because.startswith("throughput -22.2 % (tolerance 15.0 %)")


def test_log_without_tokens_is_judged_by_its_step_on_a_quiet_cpu(make: SimpleNamespace) -> None:
    """The step takes the place of a throughput that nobody knows."""
    record = make.baseline([logged(make, throughput=None)] * 5, is_cpu=True)
    slow = logged(make, throughput=None, step_time=0.032)
    judgement = decide(make, [[slow], [slow] * 2], record, is_cpu=True, scenario=LOGGED)
    assert judgement.verdict is RED
    assert judgement.because.startswith("step time +28.0 %")


@pytest.mark.parametrize(
    ("busyness", "because"),
    [(2.2, "throughput: machine busy (wall/CPU 2.20)"), (None, "throughput: busyness of the machine not known")],
)
def test_log_on_a_busy_cpu_is_inconclusive(make: SimpleNamespace, busyness: float | None, because: str) -> None:
    """It tells wall time alone, and the cores were not its own, or nobody knows: a PASS would be luck."""
    record = make.baseline([logged(make)] * 5, is_cpu=True)
    judgement = decide(make, [[logged(make, busyness=busyness)]], record, is_cpu=True, scenario=LOGGED)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because == because


@pytest.mark.parametrize(
    ("slow", "told"),
    [
        ({"step_cpu_time": 0.024}, "+20.0 % CPU time a step; step time +0.0 %: cause not known"),
        ({"throughput": 6000.0}, "-33.3 % tokens/s; CPU time a step +0.0 %: cause not known"),
    ],
)
def test_a_cpu_is_asked_for_no_watts(make: SimpleNamespace, slow: dict[str, float], told: str) -> None:
    """Clock, watts and throttling "not known here" were four lines of a red script, on machines that have none."""
    record = make.baseline([cpu(make)] * 5, is_cpu=True)
    judgement = decide(make, [[cpu(make, **slow)] * 3, [cpu(make, **slow)] * 3], record, is_cpu=True)
    assert [said.text for said in judgement.diagnosis] == [f"{told}; changed: driver 575 -> 580"]


def test_a_log_on_a_cpu_has_nothing_to_add(make: SimpleNamespace) -> None:
    """No evidence is no comma and no colon."""
    record = make.baseline([logged(make)] * 5, is_cpu=True)
    slow = logged(make, throughput=6000.0)
    judgement = decide(make, [[slow] * 3, [slow] * 3], record, is_cpu=True, scenario=LOGGED)
    (said,) = judgement.diagnosis
    assert said.text == "-33.3 % tokens/s; cause not known; changed: driver 575 -> 580"


def edited(make: SimpleNamespace, before: str, *here: Measurement, is_cpu: bool = True) -> Any:
    """Judged against the same launches of the script `before`; "" for a record that does not know it."""
    plain = [cpu(make) if is_cpu else make.gpu()] * 5
    stack = {"workload": {"script": f"train.py {before}"}} if before else {}
    record = make.baseline(plain, is_cpu=is_cpu, **stack)
    now = [replace(each, workload={"script": "train.py 9c1b77aa0142"}) for each in here]
    return decide(make, [now[:3], now[3:]] if len(now) > 3 else [now], record, is_cpu=is_cpu)


def test_an_edited_script_is_judged_and_named(make: SimpleNamespace) -> None:
    """It was "no software changed" after half an hour of editing. That is what people judge it for, so it stays
    comparable with what it was."""
    slow = [cpu(make, step_cpu_time=0.024)] * 5
    named = "script train.py 3f2a9c1b04de on record, train.py 9c1b77aa0142 here"
    judgement = edited(make, "3f2a9c1b04de", *slow)
    assert judgement.verdict is RED
    assert judgement.because.startswith(f"the workload changed: {named}; step cpu time +20.0 % (tolerance 10.0 %)")
    assert [said.text for said in judgement.diagnosis] == [f"the workload changed: {named}; changed: driver 575 -> 580"]
    assert judgement.stack_diff[0] == ("script", "train.py 3f2a9c1b04de", "train.py 9c1b77aa0142")

    faster = edited(make, "3f2a9c1b04de", *[cpu(make, step_cpu_time=0.016)] * 3)
    assert faster.verdict is Verdict.IMPROVED
    assert faster.stack_diff == judgement.stack_diff


@pytest.mark.parametrize("before", ["", "9c1b77aa0142"])
def test_a_script_as_on_record_is_not_named(make: SimpleNamespace, before: str) -> None:
    """Nor one whose digest an older baseline does not have."""
    judgement = edited(make, before, *[cpu(make, step_cpu_time=0.024)] * 5)
    assert judgement.verdict is RED
    assert [said.rule for said in judgement.diagnosis] == ["unknown"]
    assert judgement.stack_diff == (("driver", "575", "580"),)


def test_an_edit_hides_no_cause(make: SimpleNamespace) -> None:
    """An edited comment beside a broken fan: what the sensors show is told as well."""
    hot = make.gpu({"throughput": 60000.0, "sm_clock": 1500.0, "throttle_sw_thermal": 0.6}, window_s=60.0)
    judgement = edited(make, "3f2a9c1b04de", *[hot] * 6, is_cpu=False)
    assert [said.rule for said in judgement.diagnosis][:2] == ["workload", "sw_thermal"]


def test_a_script_edited_between_launches_goes_not_on_record(make: SimpleNamespace) -> None:
    """The record would be of neither."""
    launches = [replace(cpu(make), workload={"script": f"train.py {digest}"}) for digest in "aaabb"]
    why = not_recordable(launches, MARKED.work, tier("smoke", True), is_cpu=True)
    assert why == "the script was edited between launches: train.py a, then train.py b"
    assert not not_recordable(launches[:3] + launches[:2], MARKED.work, tier("smoke", True), is_cpu=True)
