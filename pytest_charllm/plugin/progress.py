"""What is seen while it runs: one line about the launch at hand."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.engines.script.names import PHASE

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import CampaignProgress


IN_A_LOG = ("window", PHASE)
"""The phase that each launch is told by in a log: where its time goes. Of a script nothing else is known."""


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
        if self._reporter.isatty or (progress.phase in IN_A_LOG and launch != self._last):
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
