"""The policy on a CPU: strict checks always, speed only where this CPU has it on record."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.records import NeedMore, Verdict

PASS, RED = Verdict.PASS, Verdict.REGRESSION
UNKNOWN = "not judged: no baseline for this CPU, recorded"


def test_without_a_baseline_the_checks_decide(make: SimpleNamespace) -> None:
    """The first run on somebody's laptop has to be green, and say what it did not judge."""
    assert make.decide_cpu([[make.cpu()]], None).launches == 4
    judgement = make.decide_cpu([[make.cpu()] * 5], None)
    assert judgement.verdict is PASS
    assert judgement.because == f"2 strict checks hold; speed {UNKNOWN}"
    for gate in ("cost_cpu", "cost_wall"):
        assert make.row(judgement, gate).verdict is Verdict.NOT_JUDGED
        assert make.row(judgement, gate).reason == UNKNOWN
    assert make.row(judgement, "cost_cpu").gate == "Gate A"


def test_another_cpu_is_no_baseline(make: SimpleNamespace) -> None:
    """Ratios to a matmul differ by tens of percents between CPU models."""
    here = replace(make.comparable(is_cpu=True), cpu_model="another CPU")
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    judgement = make.decide_cpu([[make.cpu({"cost_cpu": 16.0})] * 5], record, comparable=here)
    assert judgement.verdict is PASS
    assert judgement.because.endswith(f"{UNKNOWN} (cpu_model: some CPU on record, another CPU here)")


def test_speed_that_did_not_agree_is_not_judged(make: SimpleNamespace) -> None:
    """A machine too noisy to agree with itself must not call anybody slow."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True, speed_on_record=False, because="Gate A 2.3 % CoV")
    judgement = make.decide_cpu([[make.cpu({"cost_cpu": 16.0})]], record)
    assert judgement.verdict is PASS
    assert judgement.because.endswith("speed not judged: speed is not on record (Gate A 2.3 % CoV)")


def test_gate_a_speaks(make: SimpleNamespace) -> None:
    """10 % more CPU time is red through Gate A, after two fresh launches, and through nothing else."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    slow = make.cpu({"cost_cpu": 8.8, "cost_wall": 2.4})
    need = make.decide_cpu([[slow]], record)
    assert isinstance(need, NeedMore)
    assert (need.launches, need.cool_to_c) == (2, {})
    judgement = make.decide_cpu([[slow], [slow, slow]], record)
    assert judgement.verdict is RED
    assert [(row.metric, row.gate) for row in judgement.metrics if row.verdict is RED] == [("cost_cpu", "Gate A")]
    assert judgement.because == "Gate A +10.0 % (tolerance 5.0 %), confirmed +10.0 %"


def test_gate_b_needs_a_quiet_machine(make: SimpleNamespace) -> None:
    """Two busy loops beside it make every wall time long: Gate A and the checks still decide."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    busy = make.cpu({"cost_wall": 3.5, "busyness": 1.72})
    judgement = make.decide_cpu([[busy]], record)
    assert judgement.verdict is PASS
    assert make.row(judgement, "cost_wall").verdict is Verdict.NOT_JUDGED
    assert make.row(judgement, "cost_wall").reason == "machine busy (wall/CPU 1.72)"
    quiet = make.cpu({"cost_wall": 2.2 * 1.2})
    judgement = make.decide_cpu([[quiet], [quiet, quiet]], record)
    assert [row.metric for row in judgement.metrics if row.verdict is RED] == ["cost_wall"]


def test_breach_of_gate_b_on_a_machine_that_became_busy_is_not_confirmed(make: SimpleNamespace) -> None:
    """A confirmation needs a launch that could have cleared it."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    rounds = [[make.cpu({"cost_wall": 3.0})], [make.cpu({"cost_wall": 3.0, "busyness": 1.6})] * 2]
    judgement = make.decide_cpu(rounds, record)
    assert judgement.verdict is PASS
    assert make.row(judgement, "cost_wall").verdict is Verdict.NOT_JUDGED


def test_failed_check_is_red_at_once(make: SimpleNamespace) -> None:
    """Checks are exact: more launches would say the same."""
    judgement = make.decide_cpu([[make.cpu()]], None, aside=make.diagnostic(["loss parity"]))
    assert judgement.verdict is RED
    assert judgement.because == "loss parity: expected 1, observed 2"
    assert not judgement.confirmed


def test_failed_check_does_not_silence_gate_a(make: SimpleNamespace) -> None:
    """A workload that changed may be slower all the same: both lines are told."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    slow, wrong = make.cpu({"cost_cpu": 10.4}), make.diagnostic(["FLOPs"])
    assert isinstance(make.decide_cpu([[slow]], record, aside=wrong), NeedMore)
    judgement = make.decide_cpu([[slow], [slow, slow]], record, aside=wrong)
    assert judgement.because.startswith("FLOPs: expected 1, observed 2; Gate A +30.0 %")


@pytest.mark.parametrize("rounds", [[], [[]]])
def test_strict_scenario_needs_no_timed_launch(make: SimpleNamespace, rounds: list[list[object]]) -> None:
    """Most scenarios of a laptop are held to their checks alone."""
    judgement = make.decide_cpu(rounds, None, speed=False)
    assert judgement.verdict is PASS
    assert judgement.because == "2 strict checks hold; speed not judged: only its strict checks are"
    assert make.decide_cpu(rounds, None, speed=False, aside=None).verdict is Verdict.INCONCLUSIVE


def test_without_checks_nothing_passes(make: SimpleNamespace) -> None:
    """A diagnostic pass that proved nothing must not read like one that proved all."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    assert make.decide_cpu([[make.cpu()]], record, aside=None).verdict is Verdict.INCONCLUSIVE
    assert make.decide_cpu([[make.cpu()] * 5], None, aside=None).verdict is Verdict.INCONCLUSIVE


def test_gate_a_without_evidence_withholds_pass(make: SimpleNamespace) -> None:
    """Gate B alone may be kept out by a busy machine; Gate A may not vanish."""
    record = make.baseline([make.cpu()] * 5, is_cpu=True)
    judgement = make.decide_cpu([[make.cpu({"cost_cpu": None})]], record)
    assert (judgement.verdict, judgement.because) == (Verdict.INCONCLUSIVE, "Gate A: not read")
