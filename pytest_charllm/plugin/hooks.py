"""pytest's hooks while items of ours run. Registered only then."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_charllm.errors import BadInput, CharllmError, LaunchFailed, NoBaseline, Regression, TrendBroken
from pytest_charllm.plugin import opening, outcomes, terminal
from pytest_charllm.plugin.fixtures import Measured
from pytest_charllm.plugin.guards import SIGTERM_EXIT, SigtermGuard
from pytest_charllm.plugin.options import remarks
from pytest_charllm.plugin.outcomes import Outcome
from pytest_charllm.plugin.parametrize import collected
from pytest_charllm.plugin.state import is_ours
from pytest_charllm.plugin.suite import Suite

TOLD_IN_FULL = (CharllmError, Regression, LaunchFailed, NoBaseline, TrendBroken)
"""Their message is the whole story; our own frames above it would only push it off the screen."""

ERROR_ANYWHERE = (CharllmError,)
"""Not a failure of what is tested, in whichever phase it comes up."""


class SuiteHooks:
    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._sigterm = SigtermGuard()
        self._interrupted = False
        self._without_baseline: dict[str, str] = {}
        self._ran = False
        self._not_closed: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Everything that can be wrong before the first test ends the session here, with pytest's code for usage."""
        ours = [item for item in session.items if is_ours(item)]
        if not ours or (session.testsfailed and not session.config.option.continue_on_collection_errors):
            return
        suite = self._suite
        self._without_baseline = opening.skip_without_baseline(session.config, suite.options, suite.machine, ours)
        if not all(item.get_closest_marker("skip") for item in ours):
            try:
                suite.open(ours)
            except BadInput as error:
                raise pytest.UsageError(str(error)) from None
        self._ran = True

    def pytest_report_collectionfinish(self) -> list[str]:
        return [terminal.header(self._suite), *remarks(self._suite.options)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        with self._sigterm.installed():
            try:
                return (yield)
            except KeyboardInterrupt:  # a second one may hit pytest before it has noted the first
                self._interrupted = True
                raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        measured = getattr(item, "funcargs", {}).get("measured")
        if isinstance(measured, Measured) and not measured.used:
            pytest.fail("measured.check() was never called: this test judges nothing", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if is_ours(item):
            _tell(item, call, report)
            if report.skipped and report.when == "setup":
                self._settled_before(item)
        self._sigterm.raise_if_arrived()
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self._suite.progress.clear()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """A call that met a harness failure is an error, just as in set-up: the stack under test did nothing wrong."""
        if getattr(report, "charllm_error", False) and report.when == "call":
            return "error", "E", "ERROR"
        return None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        try:
            self._suite.close(interrupted=self._interrupted or not ended)
        except CharllmError as error:  # a full disk, say; an exception here would take every report of the session away
            self._not_closed = str(error)
        if self._sigterm.arrived:
            session.exitstatus = SIGTERM_EXIT
            # pytest asks for no summary under an exit code of one's own, and a job cancelled late has much to tell.
            reporter = session.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None and exitstatus == SIGTERM_EXIT:
                reporter.ensure_newline()
                self.pytest_terminal_summary(reporter, SIGTERM_EXIT)
        elif exitstatus == pytest.ExitCode.OK and self._ran:
            ours = outcomes.exit_status(self._suite.results)
            session.exitstatus = ours if self._not_closed is None else pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self._ran:
            terminal.write_summary(terminalreporter, self._suite, exitstatus)
        if self._not_closed is not None:
            terminalreporter.write_line(f"the end of the run is not recorded: {self._not_closed}", red=True)

    def _settled_before(self, item: pytest.Item) -> None:
        """Count what was skipped by a mark of ours, so that nothing planned is missing from the summary."""
        found = collected(item)
        if item.nodeid in self._without_baseline:
            key = self._without_baseline[item.nodeid]
            self._suite.settle(item, key, Outcome.NO_BASELINE, opening.NOT_LAUNCHED)
        elif found is not None and found.broken is not None:
            self._suite.settle(item, found.planned.scenario.key, Outcome.INFEASIBLE, str(found.broken))


def _tell(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Show our exceptions by their message alone, and our skips at the test instead of inside the plugin."""
    if call.excinfo is None:
        return
    if report.failed and isinstance(call.excinfo.value, TOLD_IN_FULL):
        report.longrepr = call.excinfo.getrepr(style="value")
        if report.longrepr.reprcrash is not None:
            first_line, _, _ = str(call.excinfo.value).partition("\n")
            report.longrepr.reprcrash.message = first_line
        report.charllm_error = isinstance(call.excinfo.value, ERROR_ANYWHERE)  # type: ignore[attr-defined]
    elif report.skipped and isinstance(report.longrepr, tuple):
        raised_in, _, reason = report.longrepr
        if Path(raised_in).parent == Path(__file__).parent:
            path, line, _ = item.reportinfo()
            report.longrepr = (str(path), (line or 0) + 1, reason)
