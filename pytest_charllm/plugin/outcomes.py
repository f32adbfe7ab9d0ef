"""From evidence and verdict to what pytest is told. One table, so that nothing is decided anywhere else.

| outcome | pytest |
|---|---|
| PASS, IMPROVED | passed |
| MEASURED | the test compares the numbers by itself |
| REGRESSION, CRASHED, HUNG, OUT_OF_MEMORY | failed |
| NO_BASELINE | failed, or skipped where ``--charllm-missing`` says record or skip |
| WAIVED | xfailed |
| INCONCLUSIVE, INFEASIBLE | skipped |
| INVALID, HARNESS | error |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_charllm.errors import CharllmError, HarnessError, LaunchFailed, NoBaseline, Regression

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import Evidence
    from pytest_charllm.records import Launch
    from pytest_charllm.report.case import Case

UNDECIDED_LIMIT = 0.20
"""More than this share of the judged items INVALID or INCONCLUSIVE: a green run would say more than it knows."""

EXIT_UNDECIDED = 10
EXIT_NOTHING_JUDGED = 11


class Outcome(StrEnum):
    PASS = "PASS"
    IMPROVED = "IMPROVED"
    MEASURED = "MEASURED"
    WAIVED = "WAIVED"
    REGRESSION = "REGRESSION"
    CRASHED = "CRASHED"
    HUNG = "HUNG"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NO_BASELINE = "NO_BASELINE"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    HARNESS = "HARNESS"
    INFEASIBLE = "INFEASIBLE"


ERRORS = frozenset({Outcome.INVALID, Outcome.HARNESS})
NOT_JUDGED = frozenset({Outcome.NO_BASELINE, Outcome.INFEASIBLE})
UNDECIDED = frozenset({Outcome.INCONCLUSIVE, Outcome.INVALID})


class MeasurementError(CharllmError):
    """The measurement was disturbed, so it says nothing about the stack under test."""


EXCEPTION: dict[Outcome, type[Exception]] = {
    Outcome.REGRESSION: Regression,
    Outcome.CRASHED: LaunchFailed,
    Outcome.HUNG: LaunchFailed,
    Outcome.OUT_OF_MEMORY: LaunchFailed,
    Outcome.NO_BASELINE: NoBaseline,
    Outcome.INVALID: MeasurementError,
    Outcome.HARNESS: HarnessError,
}


@dataclass(frozen=True)
class Result:
    """What one test learned about one scenario."""

    nodeid: str
    outcome: Outcome
    case: Case


def of_evidence(evidence: Evidence) -> tuple[Outcome, str] | None:
    """What the first round already settles: our side failed, the measurement is invalid, or the job did not end."""
    if evidence.failed is not None:
        return of_failure(evidence.failed)
    if evidence.invalid is not None:
        return (Outcome.HARNESS if evidence.harness else Outcome.INVALID), evidence.invalid
    return None


def of_failure(launch: Launch) -> tuple[Outcome, str]:
    """How a launch that did not complete ended, and its first cause in one line."""
    return Outcome[launch.status.name], launch.first_cause


def cases(results: Sequence[Result]) -> list[Case]:
    """One a scenario, judged if anybody did, in order of first mention; what a rule forbade is counted instead."""
    told: dict[str, Case] = {}
    for result in results:
        # A value that a test of a trend read, or did not find, says nothing of the scenario's verdict.
        if result.outcome in (Outcome.MEASURED, Outcome.INCONCLUSIVE) and result.case.judgement is None:
            told.setdefault(result.case.key, result.case)
        elif result.outcome is not Outcome.INFEASIBLE:
            told[result.case.key] = result.case
    return list(told.values())


def exit_status(results: Sequence[Result]) -> int:
    """What to end with where pytest itself sees nothing wrong."""
    judged = [result for result in results if result.outcome not in NOT_JUDGED]
    if not judged:
        return EXIT_NOTHING_JUDGED
    undecided = sum(result.outcome in UNDECIDED for result in judged)
    return EXIT_UNDECIDED if undecided > UNDECIDED_LIMIT * len(judged) else 0
