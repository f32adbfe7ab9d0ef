"""The outcome table of the design, a test a row, and the exit codes that follow from it."""

from __future__ import annotations

import json

import pytest

from pytest_charllm.errors import BadRecord, HarnessError
from pytest_charllm.plugin import outcomes, suite
from pytest_charllm.plugin.outcomes import Outcome, Result
from pytest_charllm.records import Check, MetricVerdict, Status, Verdict

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""

SLOWER = MetricVerdict(
    metric="throughput", verdict=Verdict.REGRESSION, value=36000.0, reference=40000.0, change=-0.10, tolerance=0.015,
    would_have_seen=0.019,
)  # fmt: skip


def test_pass(inner):
    """PASS is a pass, with its row in the table and exit code 0."""
    inner.suite(CHECK)
    result = inner.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*charllm: h200-sxm 1x1, driver 580*", "llama3-1b.mb1 * PASS *", "run run-1: *"])
    assert result.ret == 0
    assert inner.campaign.closed == [False]


def test_improved_passes_and_asks_for_a_refresh(inner):
    """IMPROVED is green, but a better number nobody puts on record hides the next loss of the same size."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.IMPROVED)
    result = inner.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["IMPROVED llama3-1b.mb1*baseline accept latest --only llama3-1b.mb1"])


def test_what_is_to_be_put_on_record_is_named_with_its_folders(inner):
    """`baseline accept latest` went to another folder than the run: to whatever ran last there."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.IMPROVED)
    inner.run("--charllm-dir", "my runs", "--charllm-tier=smoke").stdout.fnmatch_lines(
        ["*put it on record: pytest-charllm baseline accept latest '--charllm-dir=my runs' --only llama3-1b.mb1"]
    )


def test_an_impatient_ctrl_c_still_interrupts_the_run(inner):
    """The second hit pytest before it had noted the first: the run was on record as finished, with nothing judged."""
    inner.suite(CHECK)
    inner.scripted(raises=KeyboardInterrupt())
    inner.pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_keyboard_interrupt():
            raise KeyboardInterrupt
            yield
        """
    )
    with pytest.raises(KeyboardInterrupt):
        inner.run()
    assert inner.campaign.closed == [True]


def test_what_was_cut_off_is_named(inner):
    """A job cancelled in its third hour said nothing of the scenario that it was at."""
    inner.suite(CHECK.replace('"llama3-1b.mb1"', '"llama3-1b.mb1", "llama3-1b.mb2"'))
    inner.scripted("llama3-1b.mb2", raises=pytest.exit.Exception("cancelled"))
    result = inner.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    told = "ended before it was judged: llama3-1b.mb2; pytest-charllm runs show run-1 has its launches"
    assert [line for line in result.outlines if line.startswith("ended before")] == [told]


def test_regression_fails_with_the_story_and_no_traceback(inner):
    """The story is for the reader at breakfast; frames of the plugin above it are noise."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,))
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["REGRESSION llama3-1b.mb1 on h200-sxm 1x1*", "*run just this*", "*pytest *test_it*"])
    result.stdout.fnmatch_lines(["FAILED test_suite.py::test_it* - REGRESSION llama3-1b.mb1 on*"])
    result.stdout.no_fnmatch_line("*def test_it*")
    result.stdout.no_fnmatch_line("*Traceback*")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_rerun_line_keeps_our_options(inner):
    """Without the injected fault or the baseline folder the line would run something else."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.REGRESSION)
    inner.run("-v", "--charllm-inject", "slowdown=0.05", "--microbatch=1", "--charllm-seed=7").stdout.fnmatch_lines(
        ["  pytest 'test_suite.py::test_it?*?' --charllm-inject=slowdown=0.05 --microbatch=1 --charllm-seed=7"]
    )


def test_rerun_line_gives_a_switch_no_value(inner):
    """What follows was taken for its value: ``--charllm-simulate=--charllm-tier``, which pytest refuses."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.REGRESSION)
    inner.run("--gpu=h200", "--charllm-simulate", "--charllm-tier", "smoke").stdout.fnmatch_lines(
        ["  pytest 'test_suite.py::test_it?*?' --gpu=h200 --charllm-simulate --charllm-tier=smoke"]
    )


@pytest.mark.parametrize("status", [Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY])
def test_a_job_that_does_not_complete_fails(inner, status):
    """A crash of the training job is a finding about the stack, with the right rank's words."""
    inner.suite(CHECK)
    inner.scripted(status=status)
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{status.name} llama3-1b.mb1 on h200*", "*broken weights on rank 1*", "*the tail*"])


def test_crash_of_a_confirming_launch_fails(inner):
    """The judge says INCONCLUSIVE then, but a crash must not end as a skip."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.INCONCLUSIVE, crash_in_confirmation=True)
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["CRASHED llama3-1b.mb1*"])


def test_disturbed_confirmation_is_the_judges_to_weigh(inner):
    """Two tests of one scenario must tell the same: the second saw the disturbance in set-up and called it INVALID."""
    inner.suite(CHECK + CHECK.replace("test_it", "test_too"))
    inner.scripted(verdict=Verdict.INCONCLUSIVE, invalid_in_confirmation=True)
    inner.run().assert_outcomes(skipped=2)


def test_no_baseline_fails_by_default(inner):
    """A scenario nobody accepted yet must not be green every night."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.NO_BASELINE)
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["NO_BASELINE llama3-1b.mb1*"])


def test_no_baseline_is_skipped_when_recording(inner):
    """record: launch, keep as a proposal, do not fail. Nothing was judged, and the exit code says so."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.NO_BASELINE)
    result = inner.run("--charllm-missing=record")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["exit code 11: nothing was judged", "SKIPPED*: NO_BASELINE: because NO_BASELINE"])
    assert inner.campaign.asked
    assert result.ret == outcomes.EXIT_NOTHING_JUDGED


def test_no_baseline_is_not_even_launched_when_skipping(inner):
    """skip: no GPU minute is spent on what cannot be judged, not by a neighbour's turn either."""
    inner.suite(CHECK)
    result = inner.run("--charllm-missing=skip")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["llama3-1b.mb1*NO_BASELINE*", "SKIPPED*NO_BASELINE: none on record, not launched"])
    assert not inner.campaigns


KNOWN = """
[[known]]
scenario = "llama3-1b.*"
metric = "throughput"
delta = {delta}
until = {until}
ticket = "PERF-1"
because = "slow all-gather, reported upstream"
"""


def test_waived_regression_is_xfailed(inner):
    """Within its delta and date a known regression is reported as known."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known=KNOWN.format(delta=0.15, until="2999-01-01"))
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,))
    result = inner.run()
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["llama3-1b.mb1*WAIVED*", "XFAIL*slow all-gather, reported upstream*"])
    assert result.ret == 0
    assert [ended.outcome for ended in inner.campaign.ended] == ["WAIVED"], "its judgement says REGRESSION"


@pytest.mark.parametrize(
    ("delta", "until", "says"),
    [(0.05, "2999-01-01", "known up to 0.05 only"), (0.15, "2020-01-01", "known until 2020-01-01")],
)
def test_waiver_does_not_reach_further(inner, delta, until, says):
    """Past its delta or its date the test is red again, and the story says that a waiver ran out."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known=KNOWN.format(delta=delta, until=until))
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,))
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{says}*"])


def test_waiver_never_covers_a_failed_check(inner):
    """Slower is one thing, wrong losses are another."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known=KNOWN.format(delta=0.15, until="2999-01-01"))
    broken = Check(name="loss parity", ok=False, expected="4.1", observed="4.2", limit=1e-6)
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,), checks=(broken,))
    inner.run().assert_outcomes(failed=1)


def test_runxfail_shows_the_regression(inner):
    """--runxfail asks to see known failures as failures; our waivers are no exception."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known=KNOWN.format(delta=0.15, until="2999-01-01"))
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,))
    inner.run("--runxfail").assert_outcomes(failed=1)


def test_waivers_of_another_file(inner):
    """A shared list of a fleet; the project's own file is then left alone, so that both are never mixed up."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known="not TOML", fleet=KNOWN.format(delta=0.15, until="2999-01-01"))
    inner.scripted(verdict=Verdict.REGRESSION, metrics=(SLOWER,))
    inner.run("--charllm-known=fleet.toml").assert_outcomes(xfailed=1)
    result = inner.run("--charllm-known=flet.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --charllm-known: *flet.toml is no file"])


def test_bad_waiver_file_is_a_usage_error(inner):
    """A waiver with a typo would silently waive nothing: said before anything is launched."""
    inner.suite(CHECK)
    inner.pytester.makefile(".toml", known=KNOWN.format(delta=0.15, until="2999-01-01").replace("delta", "dleta"))
    result = inner.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *known.toml: *dleta*"])
    assert not inner.campaigns


def test_inconclusive_is_skipped_and_counted(inner):
    """Undecided is neither green nor red; too much of it is exit code 10."""
    inner.suite(CHECK)
    inner.scripted(verdict=Verdict.INCONCLUSIVE)
    result = inner.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["exit code 10: more than 20 %*", "SKIPPED*test_suite.py:*: INCONCLUSIVE: because*"])
    assert result.ret == outcomes.EXIT_UNDECIDED


def test_invalid_is_an_error_in_set_up(inner):
    """A disturbed measurement says nothing about the stack: red, but no failure of the test."""
    inner.suite(CHECK)
    inner.scripted(invalid="another process is using the device: pid 7 on GPU-1")
    result = inner.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR at setup of test_it*", "INVALID llama3-1b.mb1*", "*pid 7 on GPU-1*"])


def test_harness_is_an_error_in_set_up(inner):
    """The launcher's own failure must not read as a crash of the job."""
    inner.suite(CHECK)
    inner.scripted(status=Status.HARNESS, invalid="the sampler could not be started")
    result = inner.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["HARNESS llama3-1b.mb1*", "*the sampler could not be started*"])


@pytest.mark.parametrize("error", [HarnessError("disk full: runs/x"), BadRecord("baselines/a.json: field schema is 9")])
def test_error_of_our_own_is_one_line(inner, error):
    """A corrupt baseline is told by file and field, without the frames that found it."""
    inner.suite(CHECK)
    inner.scripted(raises=error)
    result = inner.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"ERROR test_suite.py::test_it* - {error}"])
    result.stdout.no_fnmatch_line("*suite.py:*: *Error*")
    assert [(ended.outcome, ended.because) for ended in inner.campaign.ended] == [("HARNESS", str(error))]


def test_harness_failure_during_the_call_is_an_error_too(inner):
    """`charllm` launches in the call, where pytest would count a failure of the test."""
    inner.suite('def test_own(charllm):\n    charllm.check("llama3-1b.mb1")\n')
    inner.scripted(invalid="tainted")
    result = inner.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ERROR at call of test_own*", "INVALID llama3-1b.mb1*"])


def test_infeasible_is_skipped_at_collection(inner):
    """What cannot run here starts nothing, and the reason begins with the rule."""
    inner.suite('@scenarios("gpt3-175b.mb1")\ndef test_it(measured):\n    measured.check()\n')
    result = inner.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["1 INFEASIBLE on this machine: 1 memory", "SKIPPED*: memory: *"])
    assert result.ret == outcomes.EXIT_NOTHING_JUDGED
    assert not inner.campaigns


def test_a_test_that_never_checks_fails(inner):
    """Forgetting check() would be green for ever."""
    inner.suite('@scenarios("llama3-1b.mb1")\ndef test_it(measured):\n    pass\n')
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*measured.check() was never called*"])


def test_value_reads_a_metric(inner):
    """Trend tests take numbers instead of verdicts; reading many counts once."""
    inner.suite(
        '@scenarios("llama3-1b.mb1")\n'
        "def test_it(measured):\n    assert measured.value('step_time') == pytest.approx(0.15)\n"
        "    assert measured.value('throughput') > 0\n"
    )
    result = inner.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["llama3-1b.mb1*MEASURED*"])
    assert result.ret == 0, "a comparison by the test itself is a judgement too"


def test_value_without_evidence_is_inconclusive(inner):
    """A metric nobody could measure is never a number; the sampler's reason is the skip's."""
    inner.suite("@scenarios('llama3-1b.mb1')\ndef test_it(measured):\n    measured.value('mean_power')\n")
    result = inner.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*INCONCLUSIVE: mean_power: sampler gap"])


def test_value_of_an_unknown_metric(inner):
    """A typo in a metric's name is told, not skipped."""
    inner.suite("@scenarios('llama3-1b.mb1')\ndef test_it(measured):\n    measured.value('thruput')\n")
    result = inner.run()
    result.stdout.fnmatch_lines(["*metric 'thruput' is not known*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_charllm_skips_what_is_infeasible(inner):
    """A user's own test asks at run time; the rule answers as in suites."""
    inner.suite('def test_own(charllm):\n    charllm.check("gpt3-175b.mb1")\n')
    result = inner.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*memory: *"])


def test_verdict_is_in_junit(inner):
    """CI reads verdict and numbers from the report's properties."""
    inner.suite(CHECK)
    inner.run("--junitxml=out.xml")
    text = (inner.pytester.path / "out.xml").read_text()
    assert "&quot;verdict&quot;" in text or "'verdict': 'PASS'" in text


def test_failing_test_keeps_pytests_exit_code(inner):
    """10 and 11 are for runs that look green; a red one stays 1."""
    inner.suite(CHECK + '\n@scenarios("llama3-1b.mb2")\ndef test_other(measured):\n    measured.check()\n')
    inner.scripted("llama3-1b.mb1", verdict=Verdict.REGRESSION)
    inner.scripted("llama3-1b.mb2", verdict=Verdict.INCONCLUSIVE)
    result = inner.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("exit code*")


def test_sessions_without_our_items_are_left_alone(inner):
    """The plugin is loaded everywhere: it must not touch the exit code or the report of other projects."""
    inner.suite("def test_plain():\n    pass\n")
    result = inner.run()
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*charllm:*")


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ([], 11),
        ([Outcome.INFEASIBLE, Outcome.NO_BASELINE], 11),
        ([Outcome.PASS], 0),
        ([Outcome.PASS] * 4 + [Outcome.INCONCLUSIVE], 0),
        ([Outcome.PASS] * 3 + [Outcome.INCONCLUSIVE], 10),
        ([Outcome.PASS] * 3 + [Outcome.INVALID, Outcome.INFEASIBLE], 10),
        ([Outcome.INCONCLUSIVE], 10),
        ([Outcome.WAIVED], 0),
    ],
)
def test_exit_status(seen, status):
    """Exactly a fifth undecided is still fine; infeasible rows count on neither side."""
    assert outcomes.exit_status([Result(str(n), outcome, None) for n, outcome in enumerate(seen)]) == status


def test_properties_are_json(inner):
    """JUnit writes a property as text: a dict's repr in there is readable by nobody's machine."""
    inner.suite(CHECK)
    with (inner.pytester.path / "conftest.py").open("a") as file:
        file.write(
            "import json\ndef pytest_runtest_logreport(report):\n    if report.when == 'call':\n"
            "        open('properties.json', 'w').write(dict(report.user_properties)['charllm'])\n"
        )
    inner.run()
    assert json.loads((inner.pytester.path / "properties.json").read_text())["verdict"] == "PASS"


def test_a_run_that_cannot_be_closed_takes_no_report_away(inner, monkeypatch):
    """The disk is full at the end of the night: that was a traceback in the place of every table and XML file."""

    def full(self, *, interrupted):
        raise HarnessError("run.json not writable: No space left on device; choose another folder with --charllm-dir")

    monkeypatch.setattr(suite.Suite, "close", full)
    inner.suite(CHECK)
    result = inner.run("--junitxml=report.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["1 scenario: 1 PASS", "the end of the run is not recorded: run.json not writable: No space left on device; *"]
    )
    assert (inner.pytester.path / "report.xml").exists()
