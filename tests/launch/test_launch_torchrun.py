"""Real torchrun jobs whose ranks train nothing: how a launch ends, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_charllm.errors import HarnessError
from pytest_charllm.launch import launcher
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.names import STACKS_SIGNAL, progress_file
from pytest_charllm.launch.repro import write_repro
from pytest_charllm.launch.request import LaunchRequest, Progress
from pytest_charllm.records import Failure, Fault, Launch, Status, from_json
from pytest_charllm.telemetry.keeper import Keeper
from pytest_charllm.telemetry.reader import read_trace

pytestmark = pytest.mark.usefixtures("stub_engine")

MakeRequest = Callable[..., LaunchRequest]
ProcessesOf = Callable[[LaunchRequest], list[str]]


def run(request: LaunchRequest) -> tuple[Launch, Failure]:
    launch = TorchrunLauncher().run(request)
    assert launch.failure is not None, launch
    return launch, launch.failure


def test_launch_completes_and_tells_its_progress(make_request: MakeRequest, processes_of: ProcessesOf) -> None:
    """Telemetry must bracket the ranks, the record on disk must be the one returned, and no process may stay."""
    request, told = make_request(), []

    launch = TorchrunLauncher().run(request, told.append)

    assert (launch.status, launch.failure, launch.notes) == (Status.COMPLETED, None, ())
    assert [report.rank for report in launch.ranks] == [0, 1]
    assert (launch.stack.torch, launch.stack.kernel) == ("stub", "6.1")
    assert told[0] == Progress("start", None, None, 0.0)
    assert told[-1].phase == "window"
    path = request.directory / "launch.json"
    assert from_json(path.read_bytes(), Launch, path) == launch
    assert launch.telemetry is not None
    assert b'"line":"end"' in (request.directory / launch.telemetry).read_bytes()
    assert processes_of(request) == []


def test_launches_of_a_run_share_one_sampler(
    make_request: MakeRequest, processes_of: ProcessesOf, tmp_path: Path
) -> None:
    """Also after one that crashed: its trace is as whole as any. With the run its process goes."""
    second = tmp_path / "timed-2"
    second.mkdir()
    requests = (make_request(Fault(name="raise", rank=1)), make_request(directory=second))
    with Keeper() as keeper:
        launcher = TorchrunLauncher(keeper)
        launches = [launcher.run(request) for request in requests]
    traces = [read_trace(request.directory / "telemetry.jsonl") for request in requests]
    assert [launch.status for launch in launches] == [Status.CRASHED, Status.COMPLETED]
    assert [trace.end.reason for trace in traces if trace.end is not None] == ["told to", "told to"]
    assert len({trace.meta.pid for trace in traces if trace.meta is not None}) == 1
    assert [processes_of(request) for request in requests] == [[], []]


def test_modules_beside_the_tests_are_no_standard_ones(
    make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` looks into the working directory first: a queue.py there ended torchrun, "and left no reason"."""
    for name in ("queue", "random", "json", "socket", "logging", "typing", "signal"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not meant for anybody')")
    monkeypatch.chdir(tmp_path)
    launch = TorchrunLauncher().run(make_request())
    assert (launch.status, launch.failure) == (Status.COMPLETED, None)


def test_first_cause_is_not_its_echo(
    make_request: MakeRequest, processes_of: ProcessesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 loses its connection because rank 1 raised: naming rank 0 sends people to the wrong log. And a stray
    ``PET_MAX_RESTARTS`` must not run the job again, which would hide the crash."""
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    request = make_request(Fault(name="raise", rank=1), Fault(name="wait", rank=0))

    launch, failure = run(request)

    assert launch.status is Status.CRASHED
    assert (failure.kind, failure.rank) == ("exception", 1)
    assert failure.summary.startswith("rank 1: ValueError: shapes do not match (")
    assert "raise_error" in failure.detail
    assert "shapes do not match" in failure.log_tail
    assert not list(request.directory.glob("logs/*/attempt_1"))
    assert processes_of(request) == []


def test_fault_22_a_killed_rank_is_a_crash_and_there_is_no_second_attempt(
    make_request: MakeRequest, processes_of: ProcessesOf
) -> None:
    """A rank the kernel kills leaves no file and no traceback: only torchrun knows the signal. A restart would be
    measured as if nothing had happened."""
    request = make_request(Fault(name="die", rank=1), Fault(name="wait", rank=0))
    launch, failure = run(request)

    assert launch.status is Status.CRASHED
    assert (failure.kind, failure.rank) == ("signal", 1)
    assert "SIGKILL" in failure.summary
    assert not list(request.directory.glob("logs/*/attempt_1"))
    assert processes_of(request) == []


def test_sleeping_rank_is_a_hang_with_stacks(make_request: MakeRequest, processes_of: ProcessesOf) -> None:
    """A hang must end by itself, and say where every rank stood: without stacks nobody can act on it. On two H200s the
    ranks did not answer; a mask of blocked signals is inherited from whoever starts the night."""
    request = make_request(Fault(name="sleep"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {STACKS_SIGNAL})
    try:
        launch, failure = run(request)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert launch.status is Status.HUNG
    assert failure.kind == "hang"
    assert "rank 1: window, step 0" in failure.summary
    assert failure.detail.count("in sleep_for_ever") == 2
    assert processes_of(request) == []


def test_rank_that_leaves_early_is_named(make_request: MakeRequest, processes_of: ProcessesOf) -> None:
    """torchrun takes exit code 0 for success, so the others would wait for this rank until their time-out."""
    request = make_request(Fault(name="leave", rank=1), Fault(name="sleep", rank=0))

    launch, failure = run(request)

    assert launch.status is Status.CRASHED
    assert (failure.kind, failure.rank) == ("early-exit", 1)
    assert "in phase window, step 0" in failure.summary
    assert processes_of(request) == []


def test_answer_of_another_launch_is_refused(make_request: MakeRequest) -> None:
    """A left-over report must never be measured as this launch's."""
    launch, failure = run(make_request(Fault(name="foreign", rank=0)))

    assert launch.status is Status.HARNESS
    assert (failure.kind, failure.rank) == ("no-report", 0)
    assert "field nonce is of another launch" in failure.summary


def test_hung_at_exit_keeps_the_result(make_request: MakeRequest, processes_of: ProcessesOf) -> None:
    """Tearing down a process group can deadlock after the report is written: the measurement is good. And what a
    rank has left behind is nobody's child any more."""
    request = make_request(Fault(name="linger", rank=1), Fault(name="orphan", rank=0))

    launch = TorchrunLauncher().run(request)

    assert launch.status is Status.COMPLETED
    assert launch.notes == ("hung at exit: rank 1 still alive 2 s after the last report; ended",)
    assert processes_of(request) == []


def test_interrupt_ends_the_whole_tree(make_request: MakeRequest, processes_of: ProcessesOf) -> None:
    """Ctrl-C in mid-launch: ranks are in sessions of their own, and would hold the GPUs for ever; one that does not
    listen to SIGTERM, too."""
    request = make_request(Fault(name="stubborn"))

    def interrupt(progress: Progress) -> None:
        if progress.phase == "window":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TorchrunLauncher().run(request, interrupt)

    assert processes_of(request) == []


def test_sigkill_of_the_launching_process_leaves_nothing(
    make_request: MakeRequest, processes_of: ProcessesOf, tmp_path: Path
) -> None:
    """Nothing of ours runs after SIGKILL, so only the kernel can end agent, ranks and sampler. What a rank had started
    in a session of its own, a server or a loader, was left running."""
    request = make_request(Fault(name="daemon"))
    pickled = tmp_path / "request.pickle"
    pickled.write_bytes(pickle.dumps(request))
    program = (
        "import pathlib, pickle, sys; from pytest_charllm.launch.launcher import TorchrunLauncher; "
        "TorchrunLauncher().run(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()))"
    )
    launching = subprocess.Popen([sys.executable, "-c", program, str(pickled)])
    files = [progress_file(request.directory, rank) for rank in (0, 1)]
    try:
        wait_until(lambda: all(file.exists() for file in files), 60)
        wait_until(lambda: sum("sleep" in process for process in processes_of(request)) == 2, 60)
    finally:
        launching.send_signal(signal.SIGKILL)
        launching.wait(10)

    wait_until(lambda: processes_of(request) == [], 10)


def test_repro_bundle_runs_without_pytest(make_request: MakeRequest, tmp_path: Path) -> None:
    """The bundle must repeat the failure from its files alone, also inside another job."""
    request = make_request(Fault(name="raise", rank=1))
    launch = Launch(
        id=request.id,
        scenario=request.scenario,
        pass_=request.pass_,
        window=request.window,
        status=Status.CRASHED,
        failure=Failure(kind="exception", summary="rank 1: ValueError: shapes do not match"),
    )

    bundle = write_repro(launch, request, tmp_path / "repro")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [bundle / "repro.sh", tmp_path / "again"],
        env=environment | {"PET_NNODES": "7"},
        capture_output=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 1, done.stderr.decode()
    error = json.loads((tmp_path / "again" / "rank1.error.json").read_text())
    assert error["message"] == "shapes do not match"
    assert not (bundle / "rank1.error.json").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), HarnessError("the sampler is gone")])
def test_trouble_of_our_own_side_is_not_a_crash(
    make_request: MakeRequest, processes_of: ProcessesOf, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A full disk or a lost sampler says nothing about the stack under test."""

    class Broken:
        def __init__(self, *args: object, **options: object) -> None: ...

        def start(self) -> None:
            raise error

        def stop(self) -> tuple[str, ...]:
            return ()

    monkeypatch.setattr(launcher, "Sampler", Broken)

    request = make_request()
    launch, failure = run(request)

    assert launch.status is Status.HARNESS
    assert str(error) in failure.summary
    assert processes_of(request) == []


def test_used_folder_is_refused(make_request: MakeRequest) -> None:
    """The reports of an earlier launch in the same folder would end the new one before it starts."""
    request = make_request()
    (request.directory / "request.json").write_text("{}")

    launch, failure = run(request)

    assert launch.status is Status.HARNESS
    assert "holds a launch already" in failure.summary


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.1)
