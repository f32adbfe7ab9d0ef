"""What is on the screen while launches run, and at the end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_charllm.campaign.settings import CampaignProgress
from pytest_charllm.plugin.options import accept_line
from pytest_charllm.plugin.progress import ProgressLine
from pytest_charllm.records import Pass

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""


def test_header_names_machine_tier_run_and_faults(inner):
    """A log read next month must say on what, how thoroughly, and whether anything was injected."""
    inner.suite(CHECK)
    inner.run("--charllm-inject=slowdown=0.05,rank=0").stdout.fnmatch_lines(
        ["charllm: h200-sxm 1x1, *; smoke tier; run run-1; about 3 min (estimate); injected slowdown=0.05,rank=0"]
    )


def test_a_fault_that_is_nowhere_is_told(inner):
    """The scripted launches took none, and all is green: the line above them is no proof that it was seen."""
    inner.suite(CHECK)
    result = inner.run("--charllm-inject=crash")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["injected crash: put into 0 of 1 scenarios (*): nothing of this run says whether *"])


def test_one_line_a_phase_in_a_log(inner):
    """The campaign reports many times a second; a log file needs changes of phase only."""
    inner.suite(CHECK)
    lines = inner.run().outlines
    assert [line for line in lines if "launch 1 of 2" in line and "window" in line] == [
        "llama3-1b.mb1  timed launch 1 of 2  window, 1,234 tokens/s/GPU in warm-up"
    ]


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ((), "pytest-charllm baseline accept latest"),
        (("suites",), "pytest-charllm baseline accept latest"),
        (
            ("suites", "--charllm-dir", "my runs", "-q", "--charllm-baselines=on record"),
            "pytest-charllm baseline accept latest '--charllm-dir=my runs' '--charllm-baselines=on record'",
        ),
    ],
)
def test_the_advice_to_accept_names_the_folders_that_were_typed(typed, line):
    """`pytest` alone, in a project whose ini file says all, ended in a traceback in the place of the table."""
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=typed), getoption=lambda name, default: default)
    assert accept_line(config) == line


def test_quiet_keeps_the_table(inner):
    """-q silences progress, never the result."""
    inner.suite(CHECK)
    result = inner.run("-q")
    result.stdout.fnmatch_lines(["llama3-1b.mb1 * PASS *"])
    result.stdout.no_fnmatch_line("*launch 1 of 2*")


def test_a_scenario_has_one_row(inner):
    """Two tests that ask for one scenario share its measurement and its row."""
    inner.suite(CHECK + CHECK.replace("test_it", "test_too"))
    result = inner.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 scenario: 1 PASS"])
    assert len([line for line in result.outlines if line.startswith("llama3-1b.mb1 ") and "PASS" in line]) == 1


def test_judged_row_wins_over_a_measured_one(inner):
    """A trend test that reads a value later must not hide the verdict."""
    trend = CHECK.replace("test_it", "test_too").replace("check()", "value('step_time')")
    inner.suite(CHECK + trend)
    inner.run().stdout.fnmatch_lines(["1 scenario: 1 PASS"])


def test_judged_row_wins_over_a_value_that_is_missing(inner):
    """A trend that needs a sensor this card lacks turned the row of a scenario that passed into INCONCLUSIVE."""
    trend = CHECK.replace("test_it", "test_too").replace("check()", "value('mean_power')")
    inner.suite(CHECK + trend)
    result = inner.run()
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["1 scenario: 1 PASS"])


def test_what_scenarios_say_together_is_a_line_each(inner):
    """Thirty rows that each passed hide that all lost 1.5 %; six red ones of one card would be six tickets."""
    inner.suite(CHECK)
    inner.told_together = ("moved together: throughput -1.5 %", "node suspect: GPU-1 is slow in 2 scenarios")
    inner.run().stdout.fnmatch_lines(inner.told_together)


def test_infeasible_rows_are_counted_by_rule(inner):
    """The paper's tables have many rows one machine cannot run; the table is for what was measured."""
    inner.suite('@scenarios("gpt3-175b.mb1", "gpt3-175b.mb2", "llama3-1b.mb1.gb3", "llama3-1b.mb2.gb3")\n'
                "def test_it(measured):\n    measured.check()\n")  # fmt: skip
    result = inner.run()
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(["1 scenario: 1 PASS", "3 INFEASIBLE on this machine: 2 memory, 1 batch"])


class Screen:
    """A reporter on a terminal that writes down what it was asked to show."""

    isatty = True
    verbosity = 0

    def __init__(self) -> None:
        self.shown: list[str] = []

    def rewrite(self, line: str, erase: bool = False) -> None:
        self.shown.append(line)

    def ensure_newline(self) -> None:
        pass

    flush = ensure_newline


def progress_line(reporter: Screen | None) -> ProgressLine:
    plugins = {"terminalreporter": reporter}
    return ProgressLine(SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=plugins.get)))


def test_terminal_line_is_rewritten_and_taken_away(monkeypatch):
    """On a terminal each report replaces the one before, however narrow the window, and leaves before the result."""
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    line = progress_line(screen)
    for tokens_per_s in (None, 1234.5):
        line(CampaignProgress("llama3-1b.mb1", Pass.TIMED, 1, 2, "window", tokens_per_s))
    assert screen.shown == ["llama3-1b.mb1  timed launch 1 of 2  win"] * 2, "both, since the speed changed"
    line.clear()
    line.clear()
    assert screen.shown[2:] == ["", ""], "erased and back at its begin, once"


def test_each_launch_of_a_script_is_a_line_in_a_log():
    """A script has no window of its own, so that minutes of five launches passed without a word."""

    class Log(Screen):
        isatty = False
        write_line = Screen.rewrite

    log = Log()
    line = progress_line(log)
    for launch in (1, 2):
        for phase in ("start", "script", "script", "report"):
            line(CampaignProgress("script-train", Pass.TIMED, launch, 2, phase))
    assert log.shown == [f"script-train  timed launch {launch} of 2  script" for launch in (1, 2)]


def test_no_terminal_at_all():
    """`-p no:terminal` has no reporter to write to."""
    line = progress_line(None)
    line(CampaignProgress("llama3-1b.mb1", Pass.TIMED, 1, 2, "window"))
    line.clear()


def test_published_numbers_stand_beside_ours(inner):
    """They are read with the table, and change no verdict: the test passes whatever others reached."""
    folder = inner.pytester.mkdir("baselines") / "published"
    folder.mkdir()
    row = (
        '{"model": "llama3-1b", "hardware": "h200-sxm", "precision": "bf16", "gpus": 8, "configuration": "dp8",'
        ' "seq": 4096, "tokens_per_s_per_gpu": 99000, "source": "somebody", "document": "table 1", "date": "2026"}'
    )
    (folder / "x.json").write_text(f'{{"schema": 1, "rows": [{row}]}}')
    inner.suite(CHECK)
    result = inner.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["published beside llama3-1b.mb1, 30,720 tokens/s/GPU: 99,000 by somebody (8 GPUs, dp8)"]
    )
    (folder / "x.json").write_text("{")
    inner.campaigns.clear()
    inner.run().stdout.fnmatch_lines(["*published/x.json: not valid JSON*"])
