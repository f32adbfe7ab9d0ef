"""Beside other plugins: what suites refuse, what they get along with, and what a cancelled job leaves."""

from __future__ import annotations

import signal

import pytest

from pytest_charllm.plugin import guards

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""
PLAIN = "\n\ndef test_plain():\n    pass\n"


@pytest.mark.parametrize("arguments", [["-n", "2"], ["-n1"], ["--dist=each", "--tx=popen"]])
def test_xdist_is_refused_in_one_sentence(inner, arguments):
    """Workers would share the GPUs and measure each other; the controller must say so, not N crashed workers."""
    inner.suite(CHECK)
    result = inner.run(*arguments, plugins=("charllm", "benchmark", "xdist"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.startswith("ERROR")] == [f"ERROR: {guards.XDIST}"]


def test_xdist_runs_everybody_elses_tests(inner):
    """The refusal is about our items alone; -n 0 is no xdist at all."""
    inner.suite(PLAIN)
    inner.run("-n1", plugins=("charllm", "xdist")).assert_outcomes(passed=1)
    inner.suite(CHECK)
    inner.run("-n0", plugins=("charllm", "xdist")).assert_outcomes(passed=1)


def test_reruns_are_refused_in_one_sentence(inner):
    """Retrying until green is exactly what a confirmed breach is not."""
    inner.suite(CHECK)
    result = inner.run("--reruns=2", plugins=("charllm", "rerunfailures"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.startswith("ERROR")] == [f"ERROR: {guards.RERUNS}"]


def test_reruns_in_the_settings_are_refused_too(inner):
    """An ini file asks for it just as well."""
    inner.suite(CHECK)
    inner.pytester.makeini("[pytest]\nreruns = 1\n")
    assert inner.run(plugins=("charllm", "rerunfailures")).ret == pytest.ExitCode.USAGE_ERROR


def test_reruns_for_other_tests_are_none_of_our_business(inner):
    """Sessions without our items keep their habits."""
    inner.suite(PLAIN)
    inner.run("--reruns=2", plugins=("charllm", "rerunfailures")).assert_outcomes(passed=1)


def test_starts_beside_the_others(inner):
    """Option and fixture names clash at start-up, for every pytest of the environment, or not at all."""
    inner.suite(CHECK)
    others = ("xdist", "timeout", "html", "metadata", "rerunfailures", "replay")
    result = inner.run("--timeout=60", "--html=report.html", plugins=("charllm", "benchmark", *others))
    result.assert_outcomes(passed=1)
    assert "llama3-1b.mb1" in (inner.pytester.path / "report.html").read_text()


def test_starts_without_a_warning_beside_everything_installed(inner, monkeypatch):
    """Loaded by entry point, as for everybody, and in whatever order that comes to."""
    inner.suite(CHECK)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    result = inner.pytester.runpytest_subprocess("-W", "error", "--co", "-q", "--strict-markers")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*h200-sxm-llama3-1b.mb1*"])


def test_sigterm_ends_the_session_in_order(inner):
    """The default action ends Python without any clean-up, and the job's processes stay behind on the GPUs."""
    inner.suite(CHECK)
    inner.pytester.makepyfile(
        test_suite="import os, signal, pathlib\n"
        "def test_own(charllm):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    finally:\n        pathlib.Path('cleaned').touch()\n"
        "def test_next():\n    pathlib.Path('went on').touch()\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    result = inner.run()
    assert result.ret == guards.SIGTERM_EXIT == 143
    assert (inner.pytester.path / "cleaned").exists()
    assert not (inner.pytester.path / "went on").exists()
    assert inner.campaign.closed == [True]
    result.stdout.fnmatch_lines(["*= charllm: *", "run *"])  # pytest shows no summary under this exit code by itself
    assert signal.getsignal(signal.SIGTERM) is before, "the handler must not outlive the run"


def test_sigterm_that_somebody_swallowed(inner):
    """pytest's Exit is an Exception: a broad `except` around a launch must not keep a cancelled job going."""
    inner.pytester.makepyfile(
        test_suite="import os, signal, pathlib\n"
        "def test_own(charllm):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGTERM)\n    except Exception:\n        pass\n"
        "def test_next():\n    pathlib.Path('went on').touch()\n"
    )
    assert inner.run().ret == guards.SIGTERM_EXIT
    assert not (inner.pytester.path / "went on").exists()


def test_sigterm_is_left_alone_without_our_items(inner):
    """Other projects have handlers of their own."""
    inner.suite("import signal\ndef test_it():\n    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n")
    inner.run().assert_outcomes(passed=1)
