"""Scripts of one's own, from the suite file to the outcome."""

from __future__ import annotations

import pytest

from pytest_charllm.plugin import opening
from pytest_charllm.records import Verdict

OPEN = opening.open_campaign

HEAD = """
from pathlib import Path
from pytest_charllm import Layout, Scenario, Script
HERE = Path(__file__).parent
"""

CPU = """
from pytest_charllm.hardware import Machine
def pytest_charllm_machine(config):
    return Machine(variant="cpu", gpus_per_node=2, cpu_model="some CPU")
"""


def test_script_in_a_suite_and_in_a_test(inner):
    """The same script by the decorator and by the fixture is one scenario, measured once."""
    inner.suite(
        HEAD + "SCRIPT = Script(HERE / 'train.py', args=['--steps', 60])\n"
        "@scenarios(SCRIPT)\n"
        "def test_suite(measured): measured.check()\n"
        "def test_own(charllm): charllm.check(SCRIPT)\n"
        "def test_spelled_out(charllm): charllm.check(Scenario(work=SCRIPT))\n"
    )
    result = inner.run("-v", "--microbatch=4")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines("*test_suite[[]h200-sxm-script-train.args-*[]] PASSED*")
    assert len(set(inner.campaign.asked)) == 1


def test_a_script_on_a_cpu_is_not_launched_when_skipping(inner):
    """It has no strict checks that could decide without a baseline, and was launched to say so."""
    (inner.pytester.path / "conftest.py").write_text(CPU)
    inner.suite(HEAD + "@scenarios(Script('train.py'))\ndef test_it(measured): measured.check()\n")
    result = inner.run("--charllm-missing=skip")
    result.assert_outcomes(skipped=1)
    assert not inner.campaigns


def test_layout_is_the_ranks_it_gets(inner):
    """A script that asks for more ranks than there are must not be started: said in one line, or by the rule's name."""
    inner.suite(
        HEAD + "@scenarios(Script('train.py'), layout='tp2dp4')\n"
        "def test_suite(measured): measured.check()\n"
        "def test_own(charllm): charllm.check(Script('train.py'), layout='dp2')\n"
    )
    result = inner.run("-rs")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines("charllm: 1 row needs more GPUs than h200-sxm 1x1 has, deselected")
    result.stdout.fnmatch_lines("*world: dp2 needs 2 GPUs, 1x1 has 1*")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("@scenarios('llama3-1b.mb1', layout='dp2')", "layout='dp2' is for a Script; 'llama3-1b.mb1' has its own"),
        ("@scenarios(Script('a/t.py'), Script('b/t.py'))", "two different scripts have the key script-t: give one of"),
        ("@scenarios(Script('t.py'), recompute='full')", "engine: the options of a script are among its own arguments"),
        ("@scenarios(Script('t.py', deadline_s=True))", "deadline_s is True; give seconds, above 0 and finite"),
        ("@scenarios(Script('t.py', silence_s=0))", "silence_s is 0; give seconds, above 0 and finite"),
        ("@scenarios(Script('t.py', deadline_s=float('inf')))", "deadline_s is inf; give seconds, above 0 and finite"),
        ("@scenarios(Script('t.py', log='megatron'))", "log reader 'megatron' is not known; did you mean megatron-lm?"),
        ("@scenarios(Script('t.py'), layout='foo')", "BadInput: layout 'foo'"),
        ("@scenarios('script-t.dp2')", "a script's arguments are not in its key; give the Script itself"),
    ],
)
def test_mistakes_are_told_at_collection(inner, body, told):
    """Each of these would otherwise launch something else than its reader believes."""
    inner.suite(f"{HEAD}{body}\ndef test_it(measured): measured.check()\n")
    shown = inner.run("-rs").stdout.str()
    assert told in shown
    assert "plugin/parametrize.py" not in shown, "frames of ours hide the line of the suite"


def test_a_test_of_its_own_is_told_before_it_launches(inner):
    """A launch of minutes that ends with the name of a log reader that nobody has."""
    inner.suite(HEAD + "def test_own(charllm): charllm.check(Script('t.py', log='nemoo'))\n")
    result = inner.run("-rs")
    assert "log reader 'nemoo' is not known; did you mean nemo?" in result.stdout.str()
    assert not inner.campaign.asked


def test_plan_lists_scripts_without_a_guess_of_memory(inner):
    """A plan of a suite that mixes scripts and models must not end at the first script."""
    inner.suite(HEAD + "@scenarios(Script('train.py'), 'llama3-1b.mb1')\ndef test_it(measured): measured.check()\n")
    result = inner.run("--charllm-plan")
    result.stdout.fnmatch_lines(["script-train * feasible", "llama3-1b.mb1 * GiB * feasible"])


def test_script_without_steps_is_an_error_of_one_line(inner, monkeypatch):
    """It ran to its end: neither a crash nor a pass, and whoever wrote the script must be told what is missing."""
    monkeypatch.setattr(opening, "open_campaign", OPEN)
    (inner.pytester.path / "conftest.py").write_text(CPU)
    (inner.pytester.path / "silent.py").write_text("print('trained')\n")
    (inner.pytester.path / "garbled.py").write_text("print('iteration 1/ 30 | elapsed time per iteration (ms): ??')\n")
    inner.suite(
        HEAD + "@scenarios(Script(HERE / 'silent.py'), Script(HERE / 'garbled.py', log='megatron-lm'))\n"
        "def test_it(measured): measured.check()\n"
    )

    result = inner.run("--charllm-launches=1")

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        [
            "INVALID script-silent on cpu 1x2 (some CPU)",
            "never-marked: the script never called mark_step(); call it once a step*",
            "INVALID script-garbled on cpu 1x2 (some CPU)",
            "no-steps: *",
        ]
    )
    told = " ".join(result.stdout.str().split())
    assert "stdout.log" in told
    assert "Megatron-LM: no line tells how long a step took" in told


def test_namesakes_in_different_tests_are_refused(inner, monkeypatch):
    """The second would be judged by the first one's launches."""
    monkeypatch.setattr(opening, "open_campaign", OPEN)
    (inner.pytester.path / "conftest.py").write_text(CPU)
    inner.suite(
        HEAD + "@scenarios(Script('a/train.py'))\ndef test_a(measured): measured.check()\n"
        "@scenarios(Script('b/train.py'))\ndef test_b(measured): measured.check()\n"
    )
    for arguments in ((), ("--charllm-plan",)):
        result = inner.run(*arguments)
        assert "two different scripts have the key script-train" in result.stdout.str() + result.stderr.str()
        assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_one_launch_is_told_that_it_is_too_few(inner):
    """The summary advised `baseline accept`, which was certain to answer "1 of 3 valid launches"."""
    inner.scripted(verdict=Verdict.NO_BASELINE, steps_s=(0.1,))
    inner.suite(HEAD + "def test_own(charllm): charllm.check(Script('train.py'))\n")
    result = inner.run("--charllm-missing=record")
    result.stdout.fnmatch_lines("1 without a baseline, not to be put on record: 1 of 3 valid launches; run it with *")
    assert "accept latest" not in result.stdout.str()


def test_a_cpu_has_ranks(inner):
    """A machine without GPUs was told to have too few of them."""
    (inner.pytester.path / "conftest.py").write_text(CPU)
    inner.suite(HEAD + "@scenarios(Script('train.py'), layout='dp3')\ndef test_suite(measured): measured.check()\n")
    inner.run().stdout.fnmatch_lines("charllm: 1 row needs more ranks than cpu 1x2 has, deselected")
