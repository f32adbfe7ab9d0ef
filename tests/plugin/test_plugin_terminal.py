"""What is on the screen while launches run, and at the end."""

from __future__ import annotations

import pytest

from pytest_charllm.plugin.terminal import ProgressLine

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""


def test_header_names_machine_tier_run_and_faults(inner):
    """A log read next month must say on what, how thoroughly, and whether anything was injected."""
    inner.suite(CHECK)
    inner.run("--charllm-inject=slowdown=0.05,rank=0").stdout.fnmatch_lines(
        ["charllm: h200-sxm 1x1, driver 580.159.04; smoke tier; run run-1; injected slowdown=0.05,rank=0"]
    )


def test_one_line_a_phase_in_a_log(inner):
    """The campaign reports many times a second; a log file needs changes of phase only."""
    inner.suite(CHECK)
    lines = inner.run().outlines
    assert [line for line in lines if "launch 1 of 2" in line and "window" in line] == [
        "llama3-1b.mb1  timed launch 1 of 2  window  1,234 tokens/s"
    ]


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


def test_infeasible_rows_are_counted_by_rule(inner):
    """The paper's tables have many rows one machine cannot run; the table is for what was measured."""
    inner.suite('@scenarios("gpt3-175b.mb1", "gpt3-175b.mb2", "llama3-1b.tp2.mb1", "llama3-1b.mb1")\n'
                "def test_it(measured):\n    measured.check()\n")  # fmt: skip
    result = inner.run()
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(["1 scenario: 1 PASS", "3 INFEASIBLE on this machine: 2 memory, 1 world"])


def test_terminal_line_is_rewritten(inner, monkeypatch):
    """On a terminal every report replaces the line before it, however narrow the window is."""
    monkeypatch.setenv("COLUMNS", "40")
    inner.suite(CHECK)
    with (inner.pytester.path / "conftest.py").open("a") as file:
        file.write(
            "import pytest\n@pytest.hookimpl(trylast=True)\ndef pytest_configure(config):\n"
            "    config.pluginmanager.get_plugin('terminalreporter').isatty = lambda: True\n"
        )
    text = inner.run().stdout.str()
    assert "\rllama3-1b.mb1  timed launch 1 of 2  sta" in text
    assert "\nllama3-1b.mb1  timed" not in text


def test_no_terminal_at_all(pytestconfig: pytest.Config):
    """`-p no:terminal` has no reporter to write to."""

    class Config:
        class pluginmanager:  # noqa: N801  stands in for the attribute
            get_plugin = staticmethod(lambda name: None)

    ProgressLine(Config())(None)  # type: ignore[arg-type]
