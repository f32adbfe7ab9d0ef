"""The console command: exit codes, one line for bad input, and what the tables say."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pytest_charllm
from pytest_charllm.commands import runs
from pytest_charllm.commands.main import main
from pytest_charllm.records import Stack, Verdict
from pytest_charllm.records.run import Ended
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"
PATH = Path("baselines") / "h200-sxm" / "1x1" / f"{KEY}.json"


def test_accept_list_show(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands of a first baseline, as a person runs them in the project's folder."""
    run = gpu_run()
    assert main(["baseline", "accept", "latest", "--because", "first H200"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "          scenario       launches",
        "--------  -------------  ----------",
        f"accepted  {KEY}  3 launches",
        "",
        f"run {run.id}: 1 accepted, 0 refused",
        "written to baselines/h200-sxm/1x1; review with git diff, then commit",
    ]

    assert main(["baseline", "list"]) == 0
    (_, _, line) = capsys.readouterr().out.splitlines()
    assert line.split()[:8] == ["h200-sxm", "1x1", KEY, "40,772", "588", "1", "3", line.split()[7]]
    assert line.endswith("(bootstrap)")
    assert main(["baseline", "list", "--variant", "mi250"]) == 0
    assert capsys.readouterr().out == "no baselines for mi250\n"
    assert main(["baseline", "list", "--only", "llama3-70b"]) == 0
    assert capsys.readouterr().out == "no baselines that match llama3-70b\n"

    assert main(["baseline", "show", KEY]) == 0
    shown = capsys.readouterr().out
    for text in (
        f"{KEY} on h200-sxm 1x1\n{PATH}\n",
        "  power_limit_w  700\n",
        "(the reference)\n  because  first H200\n  label    bootstrap\n",
        "  stack    torch 2.11.0, driver 580.159.04\n",
        "  devices  GPU-1\n",
        "  tokens/s/GPU   40,772    40,772    40,772    40,772\n",
        "  J/token       14.4 mJ   14.4 mJ   14.4 mJ   14.4 mJ\n",
    ):
        assert text in shown


def test_show_tells_what_changed(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """Between two stacks the question is always the same: what was updated."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    stack = {"stack": Stack(torch="2.11.0", driver="590.1")}
    gpu_run(verdict=Verdict.PASS, launches=3, every=stack)
    assert main(["baseline", "accept", "latest"]) == 0
    capsys.readouterr()
    main(["baseline", "show", "llama3*"])
    assert "  changed  driver 580.159.04 -> 590.1\n" in capsys.readouterr().out


def test_refused_is_exit_one(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """A script must notice that something did not go on record, and a person read why."""
    gpu_run(verdict=Verdict.INVALID)
    assert main(["baseline", "accept", "latest"]) == 1
    out = capsys.readouterr().out
    assert f"refused  {KEY}  INVALID: told INVALID" in out
    assert not PATH.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baseline", "accept", "latest"], "no runs in .charllm/runs; run pytest suites/ first"),
        (["runs", "show", "latest", "--dir", "elsewhere"], "--charllm-dir: there is no elsewhere"),
        (["runs", "show", "latest", "--dir", "."], "no runs in runs"),
        (["runs", "list", "--charllm-dir", "page.md"], "page.md is not a directory"),
        (["baseline", "list", "--charllm-dir", "page.md"], "page.md is not a directory"),
        (["baseline", "list", "--charllm-dir", "page.md/runs"], "--charllm-dir: there is no page.md/runs"),
        (["baseline", "list", "--charllm-baselines", "/nonexistent"], "--charllm-baselines: there is no /nonexistent"),
        (["baseline", "show", "llama"], "no baseline llama; pytest-charllm baseline list names all"),
        (["runs", "prune", "--keep", "-1"], "--keep -1: must be 0 or more"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr and exit code 2, never a traceback, nor an empty list where nobody has looked."""
    Path("page.md").touch()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"pytest-charllm: {message}")
    assert captured.err.count("\n") == 1


def test_accept_makes_the_folder_that_it_is_given(gpu_run: Callable[..., RunDirectory]) -> None:
    """Baselines of another tier start in a folder of their own, which nobody has made by hand."""
    gpu_run()
    assert main(["baseline", "accept", "latest", "--charllm-baselines", "smoke"]) == 0
    assert main(["baseline", "list", "--charllm-baselines", "smoke"]) == 0


def test_an_edited_baseline_is_named(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """The listing goes on with the others, and ends red."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    gpu_run(key="gpt3-175b.2L.mb1")
    main(["baseline", "accept", "latest"])
    PATH.write_bytes(PATH.read_bytes().replace(b"40772.0", b"39772.0", 1))
    capsys.readouterr()
    assert main(["baseline", "list"]) == 2
    captured = capsys.readouterr()
    assert f"{PATH}: stacks[0].samples[0] was edited after it was accepted" in captured.err
    assert "gpt3-175b.2L.mb1" in captured.out
    assert main(["baseline", "show", KEY]) == 2


def test_runs(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured can be read again long after the terminal is closed."""
    old, new = gpu_run(), gpu_run(verdict=Verdict.PASS)
    first, second = sorted([old.id, new.id])
    assert main(["runs", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [first, second]
    assert "h200-sxm 1x1  nightly  finished" in lines[2]

    assert main(["runs", "show", new.id]) == 0
    out = capsys.readouterr().out
    assert f"run       {new.id} (finished)\n" in out
    assert "command   pytest suites/\n" in out
    assert f"{KEY}  PASS           40,772  588  14.4 mJ          61/44  told PASS" in out

    assert main(["runs", "prune", "--keep", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"deleted {first} (")
    assert out[1] == "1 deleted, 1 kept"


def test_a_run_that_lost_its_record_is_told(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was in no list, `show` called it a misspelling, and its launches filled the disk for good."""
    lost, other = gpu_run(), gpu_run(verdict=Verdict.PASS)
    (lost.path / "run.json").unlink()
    assert main(["runs", "list"]) == 2
    out, err = capsys.readouterr()
    assert other.id in out
    told = f"{lost.id}: its run.json is gone, and no command reads it; restore it, or delete the folder\n"
    assert err.endswith(told)
    assert main(["runs", "show", lost.id]) == 2
    assert capsys.readouterr().err.endswith(told)
    assert main(["runs", "prune", "--keep", "1"]) == 0
    assert capsys.readouterr().err.endswith(told)
    assert lost.path.exists()
    shutil.rmtree(other.path)
    assert main(["runs", "show", lost.id]) == 2
    assert capsys.readouterr().err.endswith(told)
    assert main(["runs", "show", "nope"]) == 2
    err = capsys.readouterr().err
    assert "no run nope in " in err
    assert err.endswith(told)
    assert main(["runs", "show", "latest"]) == 2
    assert capsys.readouterr().err.endswith(told)


def test_show_of_a_run_that_is_at_work(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had not judged yet had "ended before"."""
    run = gpu_run(verdict=Verdict.PASS)
    for judgement in (run.path / "judgements").iterdir():
        judgement.unlink()
    info = (run.path / "run.json").read_text()
    (run.path / "run.json").write_text(info.replace('"status": "finished"', '"status": "running"', 1))
    lock = os.open(run.path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert main(["runs", "show", run.id]) == 0
    assert "NOT_JUDGED" in (out := capsys.readouterr().out)
    assert "still running" in out
    os.close(lock)
    main(["runs", "show", run.id])
    assert "the run ended before" in capsys.readouterr().out


def test_show_says_what_accept_would(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """Of one launch where three are needed it said to put it on record, which was refused."""
    gpu_run(launches=1)
    main(["runs", "show", "latest"])
    out = capsys.readouterr().out
    assert "not to be put on record: 1 of 3 valid launches; run it with --charllm-launches 3" in out
    assert main(["baseline", "accept", "latest"]) == 1


def test_prune_keeps_what_is_on_record(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """The accepted run was deleted and an injected one, newer, was kept: nothing was left to calibrate from."""
    accepted, old = gpu_run(), gpu_run(verdict=Verdict.PASS)
    main(["baseline", "accept", accepted.id])
    newer = Path(".charllm/runs/99991231-000000-0000")  # ids of one second are in no order
    shutil.copytree(gpu_run(verdict=Verdict.PASS).path, newer)
    capsys.readouterr()
    assert main(["runs", "prune", "--keep", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 deleted, 2 kept, 1 older of them on record (--accepted-too deletes those)"
    assert accepted.path.exists()
    assert not old.path.exists()
    baseline = PATH.read_bytes()
    PATH.write_bytes(baseline.replace(b"40772.0", b"39772.0", 1))
    assert main(["runs", "prune", "--keep", "0"]) == 2, "what an edited file names is not known"
    assert newer.exists()
    PATH.write_bytes(baseline)
    assert main(["runs", "prune", "--keep", "1", "--accepted-too"]) == 0
    assert not accepted.path.exists()
    assert newer.exists()
    assert PATH.exists()


def test_what_ended_without_a_judgement(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """pytest had said ``1 HARNESS``, and the run knew nothing of it: no verdict in the list, no row in its table."""
    run = gpu_run(verdict=Verdict.INCONCLUSIVE)
    told = "baselines/h200-sxm/1x1/gpt3-175b.2L.mb1.json: field schema is 9"
    run.save_ended(Ended(scenario_key="gpt3-175b.2L.mb1", outcome="HARNESS", because=told))
    assert main(["runs", "list"]) == 0
    assert "finished  1 INCONCLUSIVE, 1 HARNESS  " in capsys.readouterr().out
    # A confirming launch crashed: pytest calls it that, whatever the judge had concluded.
    run.save_ended(Ended(scenario_key=KEY, outcome="CRASHED", because="rank 0: ValueError"))
    main(["runs", "list"])
    assert "finished  1 CRASHED, 1 HARNESS  " in capsys.readouterr().out
    assert main(["runs", "show", "latest"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gpt3-175b.2L.mb1", "HARNESS", *told.split()] in rows
    assert [row[1] for row in rows if row[:1] == [KEY]] == ["CRASHED"]


def test_an_empty_pattern_is_not_all_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    """`--only="$SCENARIO"` of a script whose variable is not set put a whole run on record."""
    with pytest.raises(SystemExit) as ended:
        main(["baseline", "accept", "latest", "--only="])
    assert ended.value.code == 2
    assert "--only: an empty pattern would take all scenarios" in capsys.readouterr().err


def test_a_replay_says_that_it_is_one(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """In the list it looked like a night of this machine, and its verdicts are of other launches."""
    gpu_run(replayed=True)
    assert main(["runs", "list"]) == 0
    assert "finished, replayed  1 NO_BASELINE" in capsys.readouterr().out


def test_a_run_of_another_version_is_named(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs outlive updates; one of a foreign schema must not hide the others."""
    foreign, readable = gpu_run(), gpu_run()
    file = foreign.path / "run.json"
    file.write_bytes(file.read_bytes().replace(b'"schema": 1', b'"schema": 99'))
    assert main(["runs", "list"]) == 2
    captured = capsys.readouterr()
    assert "run.json: field schema is 99" in captured.err
    assert readable.id in captured.out


def test_no_torch() -> None:
    """The command answers at once on a login node: nothing of a GPU stack is loaded, pytest neither."""
    code = (
        "import sys\n"
        "from pytest_charllm.commands.main import main\n"
        "main(['runs', 'list'])\n"
        "main(['baseline', 'list'])\n"
        "print([m for m in ('torch', 'pynvml', 'deepspeed', 'numpy', 'pytest', 'psutil') if m in sys.modules])\n"
    )
    path = os.pathsep.join([str(Path(pytest_charllm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["no runs in .charllm/runs", "no baselines", "[]"]


def test_a_reader_that_has_seen_enough(gpu_run: Callable[..., RunDirectory]) -> None:
    """``runs list | head -1`` ended with a traceback."""
    gpu_run()
    command = f"{sys.executable} -m pytest_charllm.commands.main runs list"
    environment = {**os.environ, "PYTHONPATH": str(Path(pytest_charllm.__file__).parents[1])}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | true"], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A drill takes minutes; 40 lines of traceback were its answer."""

    def interrupted(root: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run_ids", interrupted)
    assert main(["runs", "list"]) == 130
    assert capsys.readouterr().err == "pytest-charllm: interrupted\n"


def test_a_full_disk_is_one_line() -> None:
    """``doctor > page.txt`` for a bug report, where no space is left."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_charllm.commands.main", "runs", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(pytest_charllm.__file__).parents[1])},
        )  # fmt: skip
    told = "pytest-charllm: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_not_every_error_without_a_file_is_the_outputs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` starts processes: where the kernel had none left, it said that the output cannot be written."""

    def fork(root: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(runs, "run_ids", fork)
    with pytest.raises(OSError, match=os.strerror(number)):
        main(["runs", "list"])


@pytest.mark.parametrize(("arguments", "code"), [("baseline list", 0), ("runs show latest", 2)])
def test_a_closed_stdout_is_no_error(arguments: str, code: int) -> None:
    """``baseline list >&-`` ended with a traceback; its exit code is the command's own."""
    command = f"{sys.executable} -m pytest_charllm.commands.main {arguments}"
    environment = {**os.environ, "PYTHONPATH": str(Path(pytest_charllm.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == code
    assert done.stderr.count("\n") == (1 if code else 0)


def test_show_suggests_what_the_variant_has(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """The very key that was not found is no suggestion."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    capsys.readouterr()
    assert main(["baseline", "show", KEY, "--variant", "mi250"]) == 2
    assert capsys.readouterr().err == (
        f"pytest-charllm: no baseline {KEY} for mi250; pytest-charllm baseline list names all\n"
    )


@pytest.mark.parametrize("arguments", [["runs", "list"], ["baseline", "list"], ["runs", "prune", "--keep", "1"]])
def test_a_folder_of_somebody_else_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without permission to look into it, older versions of Python raise from inside `glob`."""

    def deny(folder: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "glob", deny)
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(": cannot be read: Permission denied; check its permissions\n")
