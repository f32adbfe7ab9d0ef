"""``--charllm-plan``: what would run here, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.plugin.machine import describe
from pytest_charllm.plugin.parametrize import CollectedScenario, collected

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import Planned
    from pytest_charllm.hardware import Machine


class PlanPrinter:
    """Takes the place of the run."""

    def __init__(self, machine: Machine, duration: Callable[[Planned], float | None]) -> None:
        self._machine = machine
        self._duration = duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            items = [(item.path.name, found) for item in session.items if (found := collected(item))]
            try:
                reporter.write_line(plan(self._machine, items, self._duration))
            except BadInput as error:
                raise pytest.UsageError(str(error)) from None
        return True

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # an empty plan is an answer
            session.exitstatus = pytest.ExitCode.OK


def plan(
    machine: Machine, items: list[tuple[str, CollectedScenario]], duration: Callable[[Planned], float | None]
) -> str:
    """A line a scenario: key, estimated memory per GPU, minutes of its first round, and whether it can run or which
    rule forbids it; then what each file takes, where there are several. `items` are with their file's name, `duration`
    is in seconds. Raises `BadInput` where two scripts have one key, as the run would."""
    from pytest_charllm.campaign.duration import total_s
    from pytest_charllm.campaign.settings import by_key
    from pytest_charllm.report.numbers import minutes
    from pytest_charllm.report.text import grid

    planned = by_key(item.planned for _, item in items)
    unique = {item.planned.scenario.key: item for _, item in items}
    durations_s = {key: duration(planned[key]) for key, item in unique.items() if item.broken is None}
    rows = [
        (
            key,
            _memory(item),
            f"{seconds / 60:.1f}" if (seconds := durations_s.get(key)) is not None else "",
            f"INFEASIBLE {item.broken}" if item.broken else "feasible",
        )
        for key, item in unique.items()
    ]
    table = grid(("scenario", "memory per GPU", "min", "plan"), rows, right=("min",))
    told = f"{len(rows)} scenarios on {describe(machine)}: {len(durations_s)} feasible"
    total = total_s(durations_s.values())
    parts = [table, _by_file(items, durations_s), f"{told}{f', about {minutes(total)} (estimate)' if total else ''}"]
    return "\n\n".join(part for part in parts if part)


def _by_file(items: list[tuple[str, CollectedScenario]], durations_s: Mapping[str, float | None]) -> str:
    """What there is to choose from where all is more than a night. A scenario of two files is launched once where both
    are run, so these times may add up to more than the whole."""
    from pytest_charllm.campaign.duration import total_s
    from pytest_charllm.report.numbers import minutes
    from pytest_charllm.report.text import grid

    files: dict[str, set[str]] = {}
    for name, item in items:
        if item.broken is None:
            files.setdefault(name, set()).add(item.planned.scenario.key)
    if len(files) < 2:
        return ""
    seconds = {name: total_s(durations_s[key] for key in keys) for name, keys in files.items()}
    rows = [(name, str(len(keys)), minutes(seconds[name]) if seconds[name] else "") for name, keys in files.items()]
    return grid(("file alone", "scenarios", "about"), rows, right=("scenarios", "about"))


def _memory(item: CollectedScenario) -> str:
    """Blank where the scenario breaks a rule that the estimate relies on, and where it is not known what is trained."""
    from pytest_charllm.report.numbers import size
    from pytest_charllm.scenario import Training
    from pytest_charllm.scenario.memory import need

    if not isinstance(item.planned.scenario.work, Training) or (
        item.broken is not None and item.broken.rule != "memory"
    ):
        return ""
    return size(need(item.planned.scenario).total)
