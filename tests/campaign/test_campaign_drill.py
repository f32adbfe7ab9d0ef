"""A drill: clean launches, the same with a fault, and what the judge made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.drill import ENDS_AS, drill, drills_for, reference
from pytest_charllm.commands.simulated_drill import DRILLS, run_simulated
from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Status, Verdict, tier
from pytest_charllm.records.faults import STEPPED, format_fault, parse_fault
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

TINY = parse_key("tiny-llama.dp2.mb2.fp32.eager")
SLOWDOWN = parse_fault("slowdown=0.10")


def test_seen_and_missed(lab: Any, make: SimpleNamespace) -> None:
    """A table that says "seen" whatever happens would be the gate's last word for years."""
    smoke = replace(tier("smoke", True), diagnostic=False)
    settings = lab.settings(make.CPU, tier=smoke)
    clean = reference(TINY, settings, lab.launcher)
    assert len(clean.reference.samples) == smoke.bootstrap_launches
    missed = drill(TINY, settings, SLOWDOWN, clean, lab.launcher)
    assert (missed.seen, missed.launches, missed.achieved, missed.verdict) == ("", 1, "", "MISSED")
    assert missed.told.startswith("Gate A +0.0 % (tolerance 5.0 %")
    blind = drill(TINY, settings, parse_fault("memory=0.25"), clean, lab.launcher)
    assert (blind.seen, blind.told) == ("", "peak memory: not measured on a CPU")
    assert blind.verdict == "not judged", "nothing was missed where nothing was looked at"
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    seen = drill(TINY, settings, SLOWDOWN, clean, lab.launcher)
    assert seen.seen.startswith("Gate A +10.0 %")
    assert seen.verdict == "seen"
    assert (seen.requested, seen.launches) == ("10.0 %", 1 + smoke.confirm_launches)
    assert lab.launcher.requests[-1].faults == (SLOWDOWN,)
    lab.launcher.endings["*"] = make.Ending(status=Status.CRASHED)
    with pytest.raises(HarnessError, match="ended crashed"):
        drill(TINY, settings, SLOWDOWN, clean, lab.launcher)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (HarnessError, "finished")])
def test_a_drill_that_is_interrupted_says_so(
    lab: Any, make: SimpleNamespace, error: type[BaseException], status: str
) -> None:
    """Ctrl-C left its run as "finished", with nothing judged."""

    class Ends:
        def run(self, request: Any, on_progress: Any = None) -> Any:
            raise error("in a launch")

    settings = lab.settings(make.CPU, tier=replace(tier("smoke", True), diagnostic=False))
    with pytest.raises((KeyboardInterrupt, HarnessError)):
        reference(TINY, settings, Ends())
    assert RunDirectory.open(settings.root, "latest").info.status == status


@pytest.mark.parametrize(
    ("fault", "status", "kind", "seen"),
    [
        ("crash=3", Status.CRASHED, "exception", "CRASHED (exception)"),
        ("hang", Status.HUNG, "hang", "HUNG"),
        ("oom,rank=1", Status.OUT_OF_MEMORY, "out-of-memory", "OUT_OF_MEMORY"),
        ("early-exit", Status.CRASHED, "early-exit", "CRASHED (early-exit)"),
        ("nan", Status.CRASHED, "not-finite", "CRASHED (not-finite)"),
    ],
)
def test_a_launch_that_its_fault_ended(
    lab: Any, make: SimpleNamespace, fault: str, status: Status, kind: str, seen: str
) -> None:
    """``inject --fault crash`` ended with exit code 2 and no table, after five clean launches, though it was caught."""
    settings = lab.settings(make.CPU, tier=replace(tier("smoke", True), diagnostic=False))
    clean = reference(TINY, settings, lab.launcher)
    done = drill(TINY, settings, parse_fault(fault), clean, lab.launcher)
    assert (done.verdict, done.told, done.launches) == ("MISSED", "the launch completed", 1)
    summary = "rank 1: RuntimeError: injected crash at step 3 of the window"
    lab.launcher.endings["*"] = make.Ending(status=status, failure=(kind, summary))
    done = drill(TINY, settings, parse_fault(fault), clean, lab.launcher)
    assert (done.verdict, done.seen, done.told, done.launches) == ("seen", seen, summary, 1)
    assert done.requested == {"crash=3": "step 3", "early-exit": "step 1"}.get(fault, "step 0")
    for other in (("exception", "rank 0: ValueError: broken"), ("signal", "rank 1 was ended by SIGSEGV")):
        lab.launcher.endings["*"] = make.Ending(status=Status.CRASHED, failure=other)
        with pytest.raises(HarnessError, match=other[1]):
            drill(TINY, settings, parse_fault(fault), clean, lab.launcher)


def test_every_fault_of_one_step_ends_a_launch() -> None:
    """One that is missing here would be judged by its speed, and its failure would end the whole drill."""
    assert set(ENDS_AS) == set(STEPPED)


def test_the_set_fits_the_scenario() -> None:
    """A fault on a rank that is not there, or on an overlap that is not there, would always be missed."""
    alone = ["slowdown=0.1", "host-stall=0.1", "memory=0.25", "leak=100"]
    assert [format_fault(fault) for fault in drills_for(parse_key("llama3-1b.mb1"))] == alone
    two = [*alone, "slowdown=0.2,rank=1"]
    assert [format_fault(fault) for fault in drills_for(TINY)] == [*two, "lost-overlap"]
    assert [format_fault(fault) for fault in drills_for(parse_key("llama3-1b.dp2+fsdp.mb1"))] == two


@pytest.mark.parametrize("each", DRILLS, ids=lambda each: each.name)
def test_simulated_nights_are_seen_with_their_cause(each: Any) -> None:
    """Nobody can heat a card on demand; two rules that contradict each other were found by this."""
    judgement = run_simulated(each)
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.diagnosis[0].rule == {"thermal slowdown": "sw_thermal"}.get(each.name, "power-cap")
    assert "clock" not in {said.rule for said in judgement.diagnosis}
    assert "% tokens/s; SM clock -6." in judgement.diagnosis[0].text
