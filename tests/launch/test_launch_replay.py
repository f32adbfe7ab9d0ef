"""Recorded launches answer like real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pytest_charllm.launch.replay import ReplayLauncher
from pytest_charllm.launch.request import LaunchRequest
from pytest_charllm.records import Launch, Pass, Status, from_json, to_pretty_json

MakeRequest = Callable[..., LaunchRequest]


@pytest.fixture
def recorded(make_request: MakeRequest, tmp_path: Path) -> Path:
    """Three timed launches, numbered so that text order is not their order."""
    request = make_request()
    launch = Launch(
        id="recorded",
        scenario=request.scenario,
        pass_=Pass.TIMED,
        window=request.window,
        status=Status.COMPLETED,
        telemetry="telemetry.jsonl",
    )
    for number in (1, 2, 10):
        folder = tmp_path / "recorded" / request.scenario.key / f"timed-{number}"
        folder.mkdir(parents=True)
        record = msgspec.structs.replace(launch, notes=(str(number),))
        (folder / "launch.json").write_bytes(to_pretty_json(record))
        (folder / "telemetry.jsonl").write_text(f"telemetry {number}\n")
    return tmp_path / "recorded"


def test_each_run_takes_the_next_recorded_launch(make_request: MakeRequest, recorded: Path, tmp_path: Path) -> None:
    """In the order they ran, with their telemetry, and marked so that they can never become a baseline."""
    launcher = ReplayLauncher(recorded)
    for number, recorded_number in enumerate(("1", "2", "10"), start=1):
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        launch = launcher.run(make_request(id=f"replay-{number}", directory=directory))

        assert (launch.id, launch.status, launch.replayed) == (f"replay-{number}", Status.COMPLETED, True)
        assert launch.notes == (recorded_number,)
        assert launch.telemetry is not None
        assert (directory / launch.telemetry).read_text() == f"telemetry {recorded_number}\n"
        assert from_json((directory / "launch.json").read_bytes(), Launch, directory) == launch


def test_nothing_left_says_so(make_request: MakeRequest, recorded: Path) -> None:
    """A confirmation that was never recorded must not repeat an old launch: it would confirm itself."""
    launcher = ReplayLauncher(recorded)
    for _ in range(3):
        launcher.run(make_request())
    timed, diagnostic = launcher.run(make_request()), launcher.run(make_request(pass_=Pass.DIAGNOSTIC))

    for launch, text in ((timed, "no recorded timed launch is left, it has 3"), (diagnostic, "it has 0")):
        assert launch.status is Status.HARNESS
        assert launch.failure is not None
        assert text in launch.failure.summary
        assert launch.replayed


def test_broken_record_is_named(make_request: MakeRequest, recorded: Path) -> None:
    """One line with the file, not a traceback of the session."""
    path = recorded / make_request().scenario.key / "timed-1" / "launch.json"
    path.write_text('{"schema": 99}')

    launch = ReplayLauncher(recorded).run(make_request())

    assert launch.status is Status.HARNESS
    assert launch.failure is not None
    assert str(path) in launch.failure.summary
    assert "schema is 99" in launch.failure.summary


def test_telemetry_that_was_left_behind_is_named(make_request: MakeRequest, recorded: Path) -> None:
    """Half of a launch was copied: what is missing, and what to do about it."""
    path = recorded / make_request().scenario.key / "timed-1" / "telemetry.jsonl"
    path.unlink()

    launch = ReplayLauncher(recorded).run(make_request())

    assert launch.failure is not None
    assert launch.failure.summary.startswith(f"replay: {path}: No such file or directory; copy the whole launch")
