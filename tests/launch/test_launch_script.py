"""Real torchrun jobs of scripts that know nothing of us: how they end is classified as an engine's end is."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_charllm.launch import liveness
from pytest_charllm.launch.exchange import RankProgress
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.repro import write_repro
from pytest_charllm.launch.request import LaunchRequest, Limits, limits_of
from pytest_charllm.records import Status
from pytest_charllm.scenario import Layout, Scenario, Script

MakeRequest = Callable[..., LaunchRequest]

PHASES = ("script", "script", "window")

HEAD = """
import os, sys, time
from pytest_charllm.step import mark_step
rank = int(os.environ["RANK"])
assert os.environ["WORLD_SIZE"] == "2" and "MASTER_PORT" in os.environ
print("step", sys.argv[1:], flush=True)
for _ in range(5):
    time.sleep(0.01)
    mark_step(tokens=64)
"""


@pytest.fixture
def scripted(make_request: MakeRequest, tmp_path: Path) -> Callable[..., LaunchRequest]:
    """``scripted("raise ValueError", silence_s=3)``: a script that marks five steps and then does that."""

    def make(body: str, *args: str, **declared: object) -> LaunchRequest:
        path = tmp_path / "train.py"
        path.write_text(HEAD + body)
        script = Script(str(path), args=args, **declared)  # type: ignore[arg-type]
        scenario = Scenario(work=script, layout=Layout(dp=2))
        return make_request(scenario=scenario, limits=limits_of(scenario))

    return make


def test_script_runs_and_its_marks_come_back(
    scripted: Callable[..., LaunchRequest], processes_of: Callable[[LaunchRequest], list[str]]
) -> None:
    """An argument that torchrun would take for an abbreviation of its own must reach the script; and a bundle of the
    launch must repeat it from another directory."""
    request = scripted("", "--log", "x")

    launch = TorchrunLauncher().run(request)

    assert (launch.status, launch.failure) == (Status.COMPLETED, None)
    for report in launch.ranks:
        assert report.marks is not None
        assert (len(report.marks.mono_ns), report.marks.tokens) == (5, (64,) * 5)
        assert (report.tokens_per_step, report.step_source) == (None, "marks, host clock")
        assert report.script is not None
        assert report.script.wall_s > 0.05
        assert report.script.cpu_s > 0
    logs = list(request.directory.glob("logs/*/attempt_0/*/stdout.log"))
    assert [log.read_text().splitlines()[0] for log in logs] == ["step ['--log', 'x']"] * 2
    assert processes_of(request) == []

    bundle = write_repro(launch, request, request.directory / "repro")
    done = subprocess.run(
        [bundle / "repro.sh", "out"], cwd=bundle, env={"PATH": os.environ["PATH"]}, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(path.name for path in (bundle / "out").glob("rank?.json")) == ["rank0.json", "rank1.json"]


def test_crash_in_a_script_names_its_line(scripted: Callable[..., LaunchRequest]) -> None:
    """The user's own line is what they need; rank 0 waits for its peer and is no cause."""
    request = scripted("if rank == 1: raise ValueError('bad batch')\nelse: time.sleep(60)\n")

    launch = TorchrunLauncher().run(request)

    assert launch.status is Status.CRASHED
    assert launch.failure is not None
    assert (launch.failure.kind, launch.failure.rank) == ("exception", 1)
    assert launch.failure.summary.startswith("rank 1: ValueError: bad batch (")
    assert "train.py:10 in <module>)" in launch.failure.summary
    assert "bad batch" in launch.failure.log_tail
    assert request.directory.joinpath("rank1.steps.jsonl").read_text().count('"line":"mark"') == 5


def test_what_a_script_says_before_it_exits_is_its_last_word(scripted: Callable[..., LaunchRequest]) -> None:
    """``unrecognized arguments: --widht 3`` of argparse was pushed out of the tail by a traceback of ours."""
    code = "import argparse\nif rank == 1: argparse.ArgumentParser('train.py').parse_args(['--widht', '3'])\n"
    launch = TorchrunLauncher().run(scripted(code + "else: time.sleep(60)\n"))
    assert launch.failure is not None
    assert launch.failure.summary.startswith("rank 1: ScriptExited: the script exited with 2")
    assert launch.failure.log_tail.splitlines()[-1] == "train.py: error: unrecognized arguments: --widht 3"


def test_silent_script_is_a_hang_with_stacks(
    scripted: Callable[..., LaunchRequest], processes_of: Callable[[LaunchRequest], list[str]]
) -> None:
    """A script tells nothing of where it is: what it marked and printed says since when it does nothing.

    The stacks that it is asked for were taken for output: ``silent for -1 s``.
    """
    request = scripted("def stuck():\n    time.sleep(60)\nstuck()\n", silence_s=1.0)

    launch = TorchrunLauncher().run(request)

    assert launch.status is Status.HUNG
    assert launch.failure is not None
    assert re.search(r"rank 0: script, step 5, silent for [1-9]\d* s", launch.failure.summary), launch.failure.summary
    assert launch.failure.detail.count("in stuck") == 2
    assert processes_of(request) == []


def test_marks_and_output_are_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that only prints, or only marks, is at work; one of our own engines speaks for itself."""
    now_s = [100.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now_s[0])
    told = {rank: RankProgress(rank=rank, pid=1, phase=phase, mono_s=90.0) for rank, phase in enumerate(PHASES)}
    output = tmp_path / "logs" / "job" / "attempt_0" / "1" / "stdout.log"
    output.parent.mkdir(parents=True)
    seen = liveness.Liveness(tmp_path)

    def silent_since_s() -> list[float]:
        now_s[0] += 1.0
        return [progress.mono_s for progress in seen.refresh(told).values()]

    assert silent_since_s() == [90.0] * 3
    (tmp_path / "rank0.steps.jsonl").write_text('{"line":"mark"}\n{"line":"mark"}\n{"line":"ma')
    assert silent_since_s() == [102.0, 90.0, 90.0]
    output.write_text("step 1\n")
    assert silent_since_s() == [102.0, 103.0, 90.0]
    with open(tmp_path / "rank0.steps.jsonl", "a") as file:
        file.write('rk"}\n')
    assert silent_since_s() == [104.0, 103.0, 90.0]
    assert [progress.step for progress in seen.refresh(told).values()] == [3, None, None]


def test_limits_are_the_scripts_own() -> None:
    """A night's training must not be ended after the hour that is enough for our own scenarios."""
    scenario = Scenario(work=Script("train.py", silence_s=60, deadline_s=7200))
    assert limits_of(scenario) == Limits(compile_s=60, total_s=7200)
