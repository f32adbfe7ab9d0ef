"""``--charllm-plan``: what would run here, without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_charllm.plugin.machine import describe
from pytest_charllm.plugin.parametrize import CollectedScenario, collected

if TYPE_CHECKING:
    from pytest_charllm.hardware import Machine


class PlanPrinter:
    """Takes the place of the run."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(plan(self._machine, [found for item in session.items if (found := collected(item))]))
        return True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # an empty plan is an answer
            session.exitstatus = pytest.ExitCode.OK


def plan(machine: Machine, items: list[CollectedScenario]) -> str:
    """A line a scenario: key, estimated memory per GPU, and whether it can run or which rule forbids it."""
    from pytest_charllm.report.text import grid

    unique = {item.planned.scenario.key: item for item in items}
    rows = [
        (key, _memory(item), f"INFEASIBLE {item.broken}" if item.broken else "feasible") for key, item in unique.items()
    ]
    feasible = sum(item.broken is None for item in unique.values())
    table = grid(("scenario", "memory per GPU", "plan"), rows)
    return f"{table}\n\n{len(rows)} scenarios on {describe(machine)}: {feasible} feasible".strip()


def _memory(item: CollectedScenario) -> str:
    """Blank where the scenario breaks a rule that the estimate relies on, and for a script: its model is not known."""
    from pytest_charllm.report.numbers import size
    from pytest_charllm.scenario import Script
    from pytest_charllm.scenario.memory import need

    if isinstance(item.planned.scenario.work, Script) or (item.broken is not None and item.broken.rule != "memory"):
        return ""
    return size(need(item.planned.scenario).total)
