"""Whether a fault that was asked for came to be: a drill that is green without it proves nothing."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pytest_charllm.records import Fault, Pass, Status
from pytest_charllm.records.faults import parse_fault
from pytest_charllm.report.case import Case
from pytest_charllm.report.reach import reach
from pytest_charllm.scenario import Collective, CollectiveOp, Layout, Scenario, Script

SLOWDOWN = Fault(name="slowdown", value=0.10)


@pytest.fixture
def checked(injected: Case) -> Case:
    """Launched for its strict checks alone."""
    aside = msgspec.structs.replace(injected.launches[0], pass_=Pass.DIAGNOSTIC)
    return dataclasses.replace(injected, verdict="PASS", launches=[aside])


def test_a_fault_in_every_scenario_needs_no_word(injected: Case) -> None:
    """The line below the table has what it achieved."""
    assert reach([SLOWDOWN], [injected, injected]) == []
    assert reach([], [injected]) == []


def test_what_was_only_checked_is_told(injected: Case, checked: Case) -> None:
    """``--charllm-inject=crash`` on a CPU said "injected crash", then PASS and exit code 0."""
    assert reach([SLOWDOWN], [checked, injected, checked]) == [
        "injected slowdown=0.1: put into 1 of 3 scenarios (2 only checked here, which takes no fault)"
    ]
    (line,) = reach([parse_fault("crash")], [checked])
    assert line.startswith("injected crash: put into 0 of 1 scenarios (1 only checked here, which takes no fault): ")
    assert line.endswith("nothing of this run says whether it is seen")


def test_a_launch_that_asks_for_it_may_not_have_had_it(injected: Case, checked: Case) -> None:
    """Of another world, refused by the engine, or never started: each is counted by its own reason."""
    absent = parse_fault("slowdown=0.1,rank=2")
    timed = msgspec.structs.replace(injected.launches[0], faults=(absent,))
    two_ranks = dataclasses.replace(injected, launches=[timed])
    (line,) = reach([absent], [two_ranks])
    assert "put into 0 of 1 scenarios (1 without that rank)" in line
    refused = msgspec.structs.replace(injected.launches[1], status=Status.HARNESS)
    ended = msgspec.structs.replace(checked.launches[0], status=Status.CRASHED)
    cases = [dataclasses.replace(injected, launches=launches) for launches in ([refused], [], [ended])]
    (line,) = reach([SLOWDOWN], [*cases, injected])
    assert line.endswith("put into 1 of 4 scenarios (3 not launched that far)")


@pytest.mark.parametrize(
    "work", [Script("train.py"), Collective(op=CollectiveOp.ALL_REDUCE)], ids=["script", "collective"]
)
def test_what_takes_no_fault_was_launched_far_enough(injected: Case, work: Script | Collective) -> None:
    """Refused before its first step, it was "not launched that far", as if a longer run would have had the fault."""
    scenario = Scenario(work=work, layout=Layout(dp=2))
    refused = msgspec.structs.replace(injected.launches[1], scenario=scenario, status=Status.HARNESS)
    case = dataclasses.replace(injected, key=scenario.key, launches=[refused])
    assert reach([SLOWDOWN], [case, injected]) == [
        "injected slowdown=0.1: put into 1 of 2 scenarios (1 of a script or a collective, which takes no fault)"
    ]
