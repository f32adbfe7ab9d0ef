"""What frames a session: what runs where above it, and the table at its end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.plugin import outcomes
from pytest_charllm.plugin.machine import describe
from pytest_charllm.plugin.options import accept_line, fault_texts
from pytest_charllm.plugin.outcomes import Outcome, Result

if TYPE_CHECKING:
    from pytest_charllm.plugin.suite import Suite
    from pytest_charllm.report.case import Case
    from pytest_charllm.store.run import RunDirectory


def header(suite: Suite) -> str:
    """Machine, tier and run, for the line below "collected N items"."""
    from pytest_charllm.report.numbers import minutes
    from pytest_charllm.store.paths import shown

    parts = [describe(suite.machine)]
    if suite.campaign is not None:
        parts += [f"{suite.campaign.settings.tier.name} tier", f"run {suite.campaign.run.id}"]
    if suite.about_s:
        parts.append(f"about {minutes(suite.about_s)} (estimate)")
    if suite.options.faults:
        parts.append(f"injected {' '.join(fault_texts(suite.options))}")
    if suite.options.replay is not None:
        parts.append(f"replayed from {shown(suite.options.replay)}")
    return f"charllm: {'; '.join(parts)}"


def write_summary(reporter: pytest.TerminalReporter, suite: Suite, exitstatus: int) -> None:
    """The table of scenarios, what asks for a hand, and where everything lies. Shown with ``-q`` too."""
    from pytest_charllm.report.imbalance import node_lines
    from pytest_charllm.report.reach import reach
    from pytest_charllm.report.table import summary
    from pytest_charllm.store.paths import shown

    reporter.section(f"charllm: {describe(suite.machine)}")
    cases = outcomes.cases(suite.results)
    table = summary(cases, accept_line(reporter.config))
    if table:
        reporter.write_line(table)
    for line in reach(suite.options.faults, cases):
        reporter.write_line(line, yellow=True)
    for line in (*_fronts(cases), *node_lines(cases, suite.machine)):
        reporter.write_line(line)
    for line in _published(suite, cases):
        reporter.write_line(line)
    for line in _notes(suite.results, exitstatus):
        reporter.write_line(line)
    if suite.campaign is not None:
        for line in suite.campaign.together():
            reporter.write_line(line, red=True)
        for line in suite.campaign.backtest() if suite.options.rules is not None else ():
            reporter.write_line(line)
        for line in _cut_off(suite.campaign.run, cases):
            reporter.write_line(line, yellow=True)
        reporter.write_line(f"run {suite.campaign.run.id}: {shown(suite.campaign.run.path)}")


def _cut_off(run: RunDirectory, cases: list[Case]) -> list[str]:
    """What was launched and never judged, since the run was ended before: it has no row."""
    from pytest_charllm.records.run import RunStatus

    if run.status is not RunStatus.INTERRUPTED:
        return []
    told = {case.key for case in cases}
    keys = [key for key in run.scenario_keys() if key not in told]
    return [f"ended before it was judged: {key}; pytest-charllm runs show {run.id} has its launches" for key in keys]


def _published(suite: Suite, cases: list[Case]) -> list[str]:
    from pytest_charllm.report.published import beside
    from pytest_charllm.store.published import published

    try:
        return beside(cases, suite.machine.variant, published(suite.options.shipped))
    except BadInput as error:
        return [str(error)]


def _fronts(cases: list[Case]) -> list[str]:
    from pytest_charllm.report.pareto import fronts

    table = fronts(cases)
    return ["", table, ""] if table else []


def _notes(results: list[Result], exitstatus: int) -> list[str]:
    notes = []
    rules = Counter(r.case.because.partition(":")[0] for r in results if r.outcome is Outcome.INFEASIBLE)
    if rules:
        counted = ", ".join(f"{count} {rule}" for rule, count in rules.most_common())
        notes.append(f"{rules.total()} INFEASIBLE on this machine: {counted}")
    if exitstatus == pytest.ExitCode.OK:
        ours = outcomes.exit_status(results)
        if ours == outcomes.EXIT_NOTHING_JUDGED:
            notes.append(f"exit code {ours}: nothing was judged")
        elif ours == outcomes.EXIT_UNDECIDED:
            share = f"{100 * outcomes.UNDECIDED_LIMIT:.0f} %"
            notes.append(f"exit code {ours}: more than {share} of what was judged is INVALID or INCONCLUSIVE")
    return notes
