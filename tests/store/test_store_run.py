"""Run directories: readable at any moment, also by someone who comes after a SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_charllm.errors import BadInput, BadRecord, HarnessError
from pytest_charllm.hardware import Machine
from pytest_charllm.records import Comparable, Judgement, Measurement, Pass, Stack, Value, Verdict
from pytest_charllm.records.run import RunStatus
from pytest_charllm.store.atomic import write_atomically
from pytest_charllm.store.prune import prune
from pytest_charllm.store.run import RunDirectory, run_ids

KEY = "llama3-1b.mb1"


def create(root: Path, machine: Machine) -> RunDirectory:
    return RunDirectory.create(root, machine=machine, tier="nightly", arguments="pytest suites/", seed=7)


def measurement(n: int, started: str = "2026-11-29T12:45:00Z", power: float | None = 588.0) -> Measurement:
    return Measurement(
        launch_id=f"{KEY}.timed-{n}",
        scenario_key=KEY,
        started=started,
        stack=Stack(torch="2.11.0"),
        device_uuids=("GPU-1",),
        values={"mean_power": Value(value=power, unit="W", reason=None if power else "no samples")},
    )


def test_a_run_is_found_again(tmp_path: Path, h200: Machine) -> None:
    """What the run says of itself survives, and `latest` names the newest."""
    first, second = create(tmp_path, h200), create(tmp_path, h200)
    assert first.id != second.id
    assert RunDirectory.open(tmp_path, first.id).info == first.info
    latest = RunDirectory.open(tmp_path, "latest")
    assert latest.id == second.id
    assert latest.info.machine == h200
    assert (latest.info.tier, latest.info.seed, latest.info.arguments) == ("nightly", 7, "pytest suites/")


def test_records_come_back(tmp_path: Path, h200: Machine) -> None:
    """Everything that is saved can be read by the next process, missing values with their reason."""
    run = create(tmp_path, h200)
    comparable = Comparable(variant="h200-sxm", shape="1x1", flop_formula="causal_half", window="smoke", measuring=1)
    judgement = Judgement(scenario_key=KEY, verdict=Verdict.PASS, because="within tolerance")
    run.save_measurement(measurement(1, power=None), Pass.TIMED)
    run.save_measurement(measurement(2), Pass.DIAGNOSTIC)
    run.save_comparable(KEY, comparable)
    run.save_judgement(judgement)

    found = RunDirectory.open(tmp_path, run.id)
    assert found.measurements(KEY) == [measurement(1, power=None)]
    assert found.measurements(KEY, Pass.DIAGNOSTIC) == [measurement(2)]
    assert found.comparable(KEY) == comparable
    assert found.judgements() == [judgement]
    assert found.judgement(KEY) == judgement
    assert found.scenario_keys() == [KEY]
    assert found.judgement("other.mb1") is None
    assert found.comparable("other.mb1") is None


def test_measurements_keep_the_order_of_their_launches(tmp_path: Path, h200: Machine) -> None:
    """By name, timed-10 would come before timed-2, and confirmation before the first round."""
    run = create(tmp_path, h200)
    for n in (10, 2, 1):
        run.save_measurement(measurement(n))
    run.save_measurement(measurement(3, started="2026-11-29T12:44:00Z"))
    assert [m.launch_id.removeprefix(f"{KEY}.timed-") for m in run.measurements(KEY)] == ["3", "1", "2", "10"]


def test_a_launch_counts_once(tmp_path: Path, h200: Machine) -> None:
    """The same launch measured again replaces itself instead of weighing twice in a baseline."""
    run = create(tmp_path, h200)
    run.save_measurement(measurement(1))
    run.save_measurement(measurement(1, power=600.0))
    assert [m.number("mean_power") for m in run.measurements(KEY)] == [600.0]


def test_launch_folders_are_never_shared(tmp_path: Path, h200: Machine) -> None:
    """Two launches in one folder would mix their ranks' answers."""
    run = create(tmp_path, h200)
    folder = run.launch_directory(KEY, Pass.TIMED, 1)
    assert folder == run.path / "launches" / KEY / "timed-1"
    assert folder.is_absolute()
    with pytest.raises(HarnessError, match=r"timed-1 cannot be made: File exists"):
        run.launch_directory(KEY, Pass.TIMED, 1)


def test_status_follows_the_process(tmp_path: Path, h200: Machine) -> None:
    """A live run reads running, an ended one as it ended."""
    done, stopped = create(tmp_path, h200), create(tmp_path, h200)
    assert RunDirectory.open(tmp_path, done.id).status is RunStatus.RUNNING
    done.note("cooled down only to 60 degC")
    done.finish()
    stopped.finish(interrupted=True)
    assert RunDirectory.open(tmp_path, done.id).status is RunStatus.FINISHED
    assert RunDirectory.open(tmp_path, done.id).info.notes == ("cooled down only to 60 degC",)
    assert RunDirectory.open(tmp_path, stopped.id).status is RunStatus.INTERRUPTED


def test_a_killed_run_is_readable_and_interrupted(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to say goodbye: the record still says running, the lock is gone."""
    code = (
        "import sys, pathlib\n"
        "from pytest_charllm.hardware import Machine\n"
        "from pytest_charllm.records import Judgement, Verdict\n"
        "from pytest_charllm.store.run import RunDirectory\n"
        "run = RunDirectory.create(pathlib.Path(sys.argv[1]), machine=Machine(variant='cpu', gpus_per_node=2),"
        " tier='smoke')\n"
        "run.save_judgement(Judgement(scenario_key='a.mb1', verdict=Verdict.PASS, because='fine'))\n"
        "print(run.id, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        alive = RunDirectory.open(tmp_path, run_id).status
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    assert alive is RunStatus.RUNNING
    run = RunDirectory.open(tmp_path, "latest")
    assert run.info.status is RunStatus.RUNNING
    assert run.status is RunStatus.INTERRUPTED
    assert [j.verdict for j in run.judgements()] == [Verdict.PASS]


def test_an_unknown_run_names_what_is_there(tmp_path: Path, h200: Machine) -> None:
    """A mistyped id gets the nearest ones; no run at all gets the way to one; a path is not an id."""
    with pytest.raises(BadInput, match=r"no runs in .*runs; run pytest suites/ first"):
        RunDirectory.open(tmp_path, "latest")
    run = create(tmp_path, h200)
    with pytest.raises(BadInput, match=f"no run {run.id}x in .*; close to it: {run.id}"):
        RunDirectory.open(tmp_path, f"{run.id}x")
    with pytest.raises(BadInput, match="the last of 1"):
        RunDirectory.open(tmp_path, "../runs")


def test_a_broken_record_is_named(tmp_path: Path, h200: Machine) -> None:
    """A damaged file in a run is one line with its path."""
    run = create(tmp_path, h200)
    run.save_measurement(measurement(1))
    (file,) = (run.path / "measurements" / KEY / "timed").iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(BadRecord, match=r"timed-1.json: not valid JSON"):
        run.measurements(KEY)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, h200: Machine) -> None:
    """Someone else's permissions, or a folder in its place, were a traceback; so was a `latest` of odd bytes."""
    run = create(tmp_path, h200)
    (tmp_path / "runs" / "latest").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"the last of 1: " + run.id):
        RunDirectory.open(tmp_path, "latest")
    file = run.path / "run.json"
    file.unlink()
    file.mkdir()
    with pytest.raises(BadRecord, match=r"run.json: cannot be read: Is a directory; check its permissions"):
        RunDirectory.open(tmp_path, run.id)


def test_an_unwritable_root_is_one_line(tmp_path: Path, h200: Machine) -> None:
    """Told before anything is launched, with the option that helps."""
    root = tmp_path / "file"
    root.write_text("not a folder")
    with pytest.raises(BadInput, match=r"not writable: .*; choose another folder with --charllm-dir") as caught:
        create(root, h200)
    assert "\n" not in str(caught.value)


def test_runs_stay_out_of_git(tmp_path: Path, h200: Machine) -> None:
    """Gigabytes of launches must not end up in somebody's commit; a user's own rule is kept."""
    create(tmp_path / "a", h200)
    assert (tmp_path / "a" / ".gitignore").read_text().splitlines()[-1] == "*"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".gitignore").write_text("runs/\n")
    create(tmp_path / "b", h200)
    assert (tmp_path / "b" / ".gitignore").read_text() == "runs/\n"


def test_prune_keeps_the_newest_and_the_living(tmp_path: Path, h200: Machine) -> None:
    """Pruning by age must never pull the directory from under a campaign that is still at work."""
    runs = [create(tmp_path, h200) for _ in range(4)]
    ids = run_ids(tmp_path)
    living = next(run for run in runs if run.id == ids[0])
    for run in runs:
        if run is not living:
            run.finish()
    pruned = prune(tmp_path, keep=1, spared={ids[2]})
    assert [p.run_id for p in pruned] == ids[1:2]
    assert all(p.size_bytes > 0 for p in pruned)
    assert run_ids(tmp_path) == [ids[0], ids[2], ids[3]]
    with pytest.raises(BadInput, match="--keep -1"):
        prune(tmp_path, keep=-1)


def test_a_run_that_cannot_be_pruned_is_named(tmp_path: Path, h200: Machine) -> None:
    """A link to a run kept elsewhere is no folder to delete; the reason once read "None"."""
    run = create(tmp_path / "kept", h200)
    run.finish()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / run.id).symlink_to(run.path)
    with pytest.raises(HarnessError, match=rf"cannot delete .*{run.id}: .*symbolic link.*; check its permissions"):
        prune(tmp_path, keep=0)
    assert (run.path / "run.json").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in mid-write must cost neither the old content nor leave a temporary file."""
    path = tmp_path / "record.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HarnessError, match=r"record.json not writable: No space left on device; choose another folder"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
    assert path.read_bytes() == b"old"
