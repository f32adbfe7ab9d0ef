"""What is seen: what runs where, one line about the launch at hand, and the table at the end."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.plugin import outcomes
from pytest_charllm.plugin.machine import describe
from pytest_charllm.plugin.options import fault_texts
from pytest_charllm.plugin.outcomes import Outcome, Result

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import CampaignProgress
    from pytest_charllm.plugin.suite import Suite
    from pytest_charllm.report.case import Case


class ProgressLine:
    """What the campaign is doing: on a terminal one line that is rewritten, in a log a line a launch."""

    def __init__(self, config: pytest.Config) -> None:
        self._reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._last: tuple[object, ...] = ()
        self._shown = False

    def __call__(self, progress: CampaignProgress) -> None:
        if self._reporter is None or self._reporter.verbosity < 0:
            return
        launch = (progress.scenario_key, progress.pass_, progress.launch)
        if self._reporter.isatty or (progress.phase == "window" and launch != self._last):
            # Launches run inside a test's phases, where pytest has the terminal's own file descriptor captured.
            with self._uncaptured():
                self._write(self._reporter, progress)
            self._last = launch

    def clear(self) -> None:
        """Before pytest writes a result: take a rewritten line off the terminal again."""
        if self._shown and self._reporter is not None:
            with self._uncaptured():
                self._reporter.rewrite("", erase=True)
                self._reporter.rewrite("")
            self._shown = False

    def _uncaptured(self) -> AbstractContextManager[None]:
        return self._capture.global_and_fixture_disabled() if self._capture else nullcontext()

    def _write(self, reporter: pytest.TerminalReporter, progress: CampaignProgress) -> None:
        from pytest_charllm.report import line

        text = line.progress(
            progress.scenario_key, progress.pass_.value, progress.launch, progress.of, progress.phase,
            progress.tokens_per_s,
        )  # fmt: skip
        if reporter.isatty:
            reporter.ensure_newline()
            reporter.rewrite(text[: shutil.get_terminal_size().columns - 1], erase=True)
            self._shown = True
        else:
            reporter.write_line(text)
        reporter.flush()


def header(suite: Suite) -> str:
    """Machine, tier and run, for the line below "collected N items"."""
    from pytest_charllm.store.paths import shown

    parts = [describe(suite.machine)]
    if suite.campaign is not None:
        parts += [f"{suite.campaign.settings.tier.name} tier", f"run {suite.campaign.run.id}"]
    if suite.options.faults:
        parts.append(f"injected {' '.join(fault_texts(suite.options))}")
    if suite.options.replay is not None:
        parts.append(f"replayed from {shown(suite.options.replay)}")
    return f"charllm: {'; '.join(parts)}"


def write_summary(reporter: pytest.TerminalReporter, suite: Suite, exitstatus: int) -> None:
    """The table of scenarios, what asks for a hand, and where everything lies. Shown with ``-q`` too."""
    from pytest_charllm.report.table import summary
    from pytest_charllm.store.paths import shown

    reporter.section(f"charllm: {describe(suite.machine)}")
    table = summary(_cases(suite.results))
    if table:
        reporter.write_line(table)
    for line in _notes(suite.results, exitstatus):
        reporter.write_line(line)
    if suite.campaign is not None:
        reporter.write_line(f"run {suite.campaign.run.id}: {shown(suite.campaign.run.path)}")


def _cases(results: list[Result]) -> list[Case]:
    """One a scenario, judged if anybody did, in order of first mention; what a rule forbade is counted instead."""
    cases: dict[str, Case] = {}
    for result in results:
        if result.outcome is Outcome.MEASURED:
            cases.setdefault(result.case.key, result.case)
        elif result.outcome is not Outcome.INFEASIBLE:
            cases[result.case.key] = result.case
    return list(cases.values())


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
