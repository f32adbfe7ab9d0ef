"""How far the faults came that a run was asked for: one that was put into no launch has tested nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_charllm.records import Fault, Launch, Pass, Status
from pytest_charllm.records.faults import format_fault
from pytest_charllm.report.case import Case
from pytest_charllm.scenario import Training


def reach(faults: Sequence[Fault], cases: Sequence[Case]) -> list[str]:
    """A line for each fault that is not in every scenario: into how many of them it was put, and why not into others.

    ``injected slowdown=0.1: put into 2 of 6 scenarios (4 only checked here, which takes no fault)``
    """
    lines = []
    for fault in faults:
        spared = Counter(why for case in cases if (why := _why_not(fault, case)))
        if spared:
            put = len(cases) - spared.total()
            told = "; ".join(f"{count} {why}" for why, count in spared.items())
            tested = "" if put else ": nothing of this run says whether it is seen"
            lines.append(f"injected {format_fault(fault)}: put into {put} of {len(cases)} scenarios ({told}){tested}")
    return lines


def _why_not(fault: Fault, case: Case) -> str:
    """ "" where it was put into a launch."""
    timed = [launch for launch in case.launches if launch.pass_ is Pass.TIMED]
    if any(_took(fault, launch) for launch in timed):
        return ""
    if any(not isinstance(launch.scenario.work, Training) for launch in case.launches):
        return "of a script or a collective, which takes no fault"
    if any(not _has_rank(fault, launch) for launch in case.launches):
        return "without that rank"
    if case.launches and not timed and case.failed is None:
        return "only checked here, which takes no fault"
    return "not launched that far"


def _took(fault: Fault, launch: Launch) -> bool:
    """A launch of status HARNESS ended before its steps, or could not have this fault."""
    return fault in launch.faults and launch.status is not Status.HARNESS and _has_rank(fault, launch)


def _has_rank(fault: Fault, launch: Launch) -> bool:
    return fault.rank is None or fault.rank < launch.scenario.layout.world
