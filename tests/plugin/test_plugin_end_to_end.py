"""From the suite file to run directory and story with the real campaign, store, judge and report; only the launcher is
a site's own, so that no process is started."""

from __future__ import annotations

import pytest

from pytest_charllm.commands.main import main
from pytest_charllm.errors import HarnessError
from pytest_charllm.plugin import opening
from pytest_charllm.store.run import RunDirectory

OPEN = opening.open_campaign

CONFTEST = """
from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import (
    Failure, Launch, Phases, RankDevice, RankReport, Stack, Status, StepSeries, Warmup, WindowEdges,
    to_pretty_json,
)

STATUS = Status("{status}")

def pytest_charllm_machine(config):
    return Machine(variant="h200-sxm", gpus_per_node=1, devices=(Device(uuid="SITE-1", name="NVIDIA H200"),))

class Launcher:
    def run(self, request, on_progress=None):
        reports, failure = (), None
        if STATUS is Status.COMPLETED:
            steps = (0.1,) * request.window.min_steps
            window = WindowEdges(begin_mono_ns=0, end_mono_ns=int(0.1e9 * len(steps)))
            reports = (RankReport(
                nonce="n", rank=0, world_size=1, host="h", pid=1, pass_=request.pass_, tokens_per_step=4096,
                parameters=1104218112, device=RankDevice(kind="cuda", name="NVIDIA H200", uuid="SITE-1"),
                attention_backend="flash", software=Stack(torch="2.11.0"), phases=Phases(window_s=4.0),
                steps=StepSeries(wall_s=steps), window=window, warmup=Warmup(steps=10, steady=True, reason="steady"),
            ),)
        else:
            failure = Failure(kind="exception", summary="ValueError: bad weights", rank=0, log_tail="last words")
        launch = Launch(
            id=request.id, scenario=request.scenario, pass_=request.pass_, window=request.window, status=STATUS,
            failure=failure, ranks=reports, started="2026-11-29T12:00:00Z",
        )
        (request.directory / "launch.json").write_bytes(to_pretty_json(launch))
        return launch

def pytest_charllm_launcher(config, settings):
    return Launcher()
"""

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""


@pytest.fixture
def site(inner, monkeypatch):
    """`inner` with the real campaign, and the site's launcher ending every launch as asked."""
    monkeypatch.setattr(opening, "open_campaign", OPEN)

    def ending(status: str):
        inner.suite(CHECK)
        (inner.pytester.path / "conftest.py").write_text(CONFTEST.replace("{status}", status))
        return inner

    return ending


def run_directory(inner) -> RunDirectory:
    return RunDirectory.open(inner.pytester.path / ".charllm", "latest")


def test_without_a_baseline(site):
    """A first night: launched, judged, kept as a proposal in the run directory, and nothing written to baselines/."""
    inner = site("completed")
    result = inner.run("--charllm-launches=2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["NO_BASELINE llama3-1b.mb1 on h200-sxm 1x1*"])
    run = run_directory(inner)
    assert len(run.measurements("llama3-1b.mb1")) == 2
    assert run.judgement("llama3-1b.mb1").verdict == "NO_BASELINE"
    assert run.ended()["llama3-1b.mb1"].outcome == "NO_BASELINE"
    assert run.status == "finished"
    assert not (inner.pytester.path / "baselines").exists()


def test_crash_leaves_story_and_repro(site):
    """The first crash ends the scenario: its story has the cause, the log, and a bundle for the vendor's ticket."""
    inner = site("crashed")
    result = inner.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["CRASHED llama3-1b.mb1*", "*bad weights*", "*last words*", "*repro*"])
    assert run_directory(inner).ended()["llama3-1b.mb1"].outcome == "CRASHED"
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_runs_show_what_the_summary_said(site, monkeypatch, capsys):
    """Of what was only measured, `runs show` of a finished run said "NOT_JUDGED: the run ended before"; of what a later
    test could judge after all, what its first test had met."""
    inner = site("completed")
    inner.suite(
        "def test_full(charllm): charllm.check('llama3-1b.mb1')\n"
        "def test_room(charllm): charllm.check('llama3-1b.mb1')\n"
        "def test_own(charllm): charllm.measure('llama3-1b.mb2').value('throughput')\n"
        "def test_blind(charllm): charllm.measure('llama3-1b.mb4').value('mean_power')\n"
    )
    save = RunDirectory.save_judgement

    def full_for_a_moment(*arguments):
        monkeypatch.setattr(RunDirectory, "save_judgement", save)
        raise HarnessError("disk full")

    monkeypatch.setattr(RunDirectory, "save_judgement", full_for_a_moment)
    inner.run("--charllm-launches=1", "--charllm-missing=record").assert_outcomes(errors=1, passed=1, skipped=2)
    said = {"llama3-1b.mb1": "NO_BASELINE", "llama3-1b.mb2": "MEASURED", "llama3-1b.mb4": "INCONCLUSIVE"}
    assert {key: ended.outcome for key, ended in run_directory(inner).ended().items()} == said
    capsys.readouterr()
    assert main(["runs", "show", "latest"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0]: row[1] for row in rows if row and row[0] in said} == said
    assert main(["runs", "list"]) == 0
    assert "finished  1 NO_BASELINE, 1 MEASURED, 1 INCONCLUSIVE  " in capsys.readouterr().out


def test_run_directory_that_cannot_be_written(site):
    """Said once, in one line, before anything is launched."""
    inner = site("completed")
    (inner.pytester.path / "file").touch()
    result = inner.run("--charllm-dir=file/below")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    assert line.startswith("ERROR: run directory file/below/runs/")


@pytest.mark.parametrize("arguments", [[], ["--charllm-launches=1"]])
def test_corrupt_baseline_is_an_error_of_one_line(site, arguments):
    """File and field are named; the scenario is not judged, and not launched either, whoever says how often."""
    inner = site("completed")
    folder = inner.pytester.mkdir("baselines") / "h200-sxm" / "1x1"
    folder.mkdir(parents=True)
    (folder / "llama3-1b.mb1.json").write_text('{"schema": 9}')
    result = inner.run(*arguments)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["ERROR test_suite.py::test_it* - baselines/*llama3-1b.mb1.json: field schema is 9*"])
    run = run_directory(inner)
    assert not list((run.path / "launches").glob("*"))
    assert run.ended()["llama3-1b.mb1"].outcome == "HARNESS", "nothing else in the folder says how it ended"


def test_replay_of_an_earlier_run(site):
    """The launches of last night, judged again by today's code, with nothing launched."""
    inner = site("completed")
    inner.run("--charllm-launches=1")
    earlier = run_directory(inner)
    replay = str(earlier.path)
    with (inner.pytester.path / "conftest.py").open("a") as file:
        file.write("\ndel pytest_charllm_launcher\n")
    result = inner.run("--charllm-launches=1", f"--charllm-replay={replay}", "--charllm-dir=again")
    result.stdout.fnmatch_lines(["charllm: *; replayed from .charllm/runs/*/launches", "NO_BASELINE llama3-1b.mb1*"])
    again = RunDirectory.open(inner.pytester.path / "again", "latest")
    assert again.info.replayed
    assert again.judgement("llama3-1b.mb1") == earlier.judgement("llama3-1b.mb1")
    assert len(again.measurements("llama3-1b.mb1")) == 1
    # By the words that the command line tool takes, and into the same folder: never the run that it starts itself.
    for name in ("latest", earlier.id):
        result = inner.run("--charllm-launches=1", f"--charllm-replay={name}")
        result.stdout.fnmatch_lines([f"charllm: *; replayed from .charllm/runs/{earlier.id}/launches", "NO_BASELINE *"])
        # Nor does the line to paste tell of that one, which is the latest by then.
        result.stdout.fnmatch_lines([f"  pytest *test_it* --charllm-replay={earlier.id}"])
    # A folder of that name in the working directory is what was meant.
    inner.pytester.mkdir(earlier.id)
    result = inner.run(f"--charllm-replay={earlier.id}")
    result.stderr.fnmatch_lines([f"ERROR: --charllm-replay: */{earlier.id} holds no recorded launch; *"])
