"""Rows that are there for an option alone."""

from __future__ import annotations

import pytest

SUITE = """
from pytest_charllm import Rows, scenarios

@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}), given="sm_clock")
def test_clocks(measured):
    measured.check()

@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}), given="soak")
@scenarios(Rows("llama3-8b", {"*:1x8": "dp8+fsdp"}), given="soak")
def test_soak(measured):
    measured.check()

@scenarios(Rows("llama3-1b", {"*:1x1": "dp1"}))
def test_plain(measured):
    measured.check()
"""


def collect(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(SUITE)
    return pytester.runpytest("--charllm-assume=h200:1x1", "--collect-only", "-q", *arguments)


def test_without_the_option_there_is_no_row_and_one_line(pytester: pytest.Pytester) -> None:
    """Soaks in every night would take its hours; and nobody finds rows that are silently not there."""
    result = collect(pytester)
    result.stdout.fnmatch_lines(
        [
            "*::test_plain?h200-sxm-llama3-1b.mb1?",
            "charllm: 2 tests have no row on h200-sxm 1x1: 1 for --charllm-sm-clock, 1 for --charllm-soak",
        ]
    )
    result.stdout.no_fnmatch_line("*test_soak*")


def test_a_suite_of_other_hardware_says_so(pytester: pytest.Pytester) -> None:
    """A suite pasted from the docs, run where none of its rows is: "1 deselected", and not a word why."""
    pytester.makepyfile(
        "from pytest_charllm import Rows, scenarios\n"
        '@scenarios(Rows("llama3-1b", {"mi250:1x1": "dp1"}, microbatch=1))\n'
        "def test_mine(measured):\n    pass\n"
    )
    told = pytester.runpytest("--charllm-assume=h200:1x1", "--collect-only").stdout
    told.fnmatch_lines(["charllm: 1 test has no row on h200-sxm 1x1: `@scenarios` says for which hardware*"])


def test_each_value_is_a_row(pytester: pytest.Pytester) -> None:
    """The front needs the driver's own clock beside the locked ones; it is the plain row, launched once for both."""
    result = collect(pytester, "--charllm-sm-clock=1200,1500", "--charllm-soak=15")
    found = [line.partition("?")[0].partition("::")[2] for line in result.stdout.lines if "::" in line]
    assert found == [
        "test_clocks[h200-sxm-llama3-1b.mb1]",
        "test_clocks[h200-sxm-llama3-1b.mb1.sm1200]",
        "test_clocks[h200-sxm-llama3-1b.mb1.sm1500]",
        "test_soak[h200-sxm-llama3-1b.mb1.soak15]",
        "test_plain[h200-sxm-llama3-1b.mb1]",
    ]
    result.stdout.no_fnmatch_line("*no row*")


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--charllm-sm-clock=fast", "--charllm-sm-clock: 'fast' is not a whole number"),
        ("--charllm-sm-clock=,", "--charllm-sm-clock: no size given"),
        ("--charllm-soak=0", "--charllm-soak: 0 is below 1"),
    ],
)
def test_values_that_cannot_be_are_one_line(pytester: pytest.Pytester, argument: str, complaint: str) -> None:
    """A grid that fell back to none would be a plain run that looks like the answer."""
    result = collect(pytester, argument)
    result.stderr.fnmatch_lines([f"ERROR: {complaint}*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_where_nothing_can_be_locked_the_rule_says_so(pytester: pytest.Pytester) -> None:
    """An AMD card at its own clock under the name of a locked one."""
    pytester.makepyfile(SUITE.replace('"*:1x1": "dp1"', '"*:1x2": "dp2"'))
    result = pytester.runpytest("--charllm-assume=mi250:1x2", "--charllm-plan", "-q", "--charllm-sm-clock=1200")
    result.stdout.fnmatch_lines(
        ["llama3-1b.dp2.mb1.sm1200*INFEASIBLE clock: SM clocks are locked on NVIDIA GPUs alone*"]
    )
