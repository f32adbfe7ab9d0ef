"""Old against new for a review, and what needs a hand among the files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.main import main
from pytest_charllm.records import Stack, Verdict
from pytest_charllm.store.baselines import BaselineStore, read
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"
PATH = Path("baselines") / "h200-sxm" / "1x1" / f"{KEY}.json"
SLOWER = {"throughput": 38_733.4, "core_temp_end": 63.0}
UPDATED = {"stack": Stack(torch="2.11.0", driver="590.12")}


def test_run_against_record(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """A reviewer who has to divide two numbers by hand stops doing so."""
    gpu_run()
    assert main(["baseline", "diff", "latest"]) == 0
    assert capsys.readouterr().out.endswith("nothing on record: all of it is new\n")
    main(["baseline", "accept", "latest"])
    gpu_run(verdict=Verdict.REGRESSION, values=SLOWER, every=UPDATED)
    capsys.readouterr()
    assert main(["baseline", "diff", "latest", "--only", "llama3*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "changed  driver 580.159.04 -> 590.12" in lines[3]
    assert any(
        line.split() == ["tokens/s/GPU", "40,772", "38,733", "-5.0", "%", "beyond", "the", "floor"] for line in lines
    )
    assert any(line.split() == ["core", "degC", "61.0", "63.0", "+2.0", "degC"] for line in lines)
    assert main(["baseline", "diff", "latest", "--only", "gpt"]) == 2


def test_what_was_accepted_last(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """Reviewed beside `git diff`, which shows numbers and no change; the sign must be that of new against old."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    capsys.readouterr()
    assert main(["baseline", "diff"]) == 0
    assert capsys.readouterr().out == f"{KEY} on h200-sxm 1x1: first on record, nothing before\n"
    gpu_run(verdict=Verdict.REGRESSION, values=SLOWER, every=UPDATED | {"started": "2026-11-30T01:00:00Z"})
    main(["baseline", "accept", "latest", "--because", "new driver"])
    capsys.readouterr()
    assert main(["baseline", "diff"]) == 0
    assert "-5.0 %" in capsys.readouterr().out
    # One line for all that has nothing before it: thirteen times the same hid the one that a reviewer looked for.
    for key in ("llama3-1b.mb2", "llama3-1b.mb4"):
        gpu_run(key)
        main(["baseline", "accept", "latest"])
    capsys.readouterr()
    assert main(["baseline", "diff"]) == 0
    out = capsys.readouterr().out
    assert "-5.0 %" in out
    assert out.endswith("\n\n\n2 scenarios: first on record, nothing before\n")


def test_orphans_and_duplicates(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """A renamed scenario leaves a file that looks like coverage; a run twice counts for more than it is."""
    run = gpu_run()
    main(["baseline", "accept", "latest"])
    store = BaselineStore(Path("baselines"), Path(".charllm/baselines"))
    baseline = read(PATH)
    assert baseline is not None
    machine = run.info.machine
    store.write(replace(baseline, stacks=baseline.stacks * 2), machine)
    store.write(replace(baseline, scenario_key="llama3-1b.mb64"), machine)
    store.write(replace(baseline, scenario_key="llama9.mb1"), machine)
    again = replace(baseline.reference, run_id="other")
    store.write(replace(baseline, scenario_key="llama3-1b.mb2", stacks=(baseline.reference, again)), machine)
    capsys.readouterr()
    assert main(["baseline", "list"]) == 0
    table, orphans, duplicates = capsys.readouterr().out.split("\n\n")
    assert len(table.splitlines()) == 6
    assert [line.split(": ")[1].split(" that")[0] for line in orphans.splitlines()[1:]] == [
        "no run on h200-sxm 1x1"
    ] * 3
    assert "llama9" in orphans
    assert f"{PATH}: run {run.id} is on record 2 times" in duplicates
    assert duplicates.count("the launch of 2026-11-29T12:41:00Z is on record 2 times") == 1


def test_nothing_to_tidy_says_nothing(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """Where no run of that machine is kept, nobody can say what is asked for: a fresh clone has no orphans."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    capsys.readouterr()
    main(["baseline", "list"])
    with_runs = capsys.readouterr().out
    Path("elsewhere").mkdir()
    main(["baseline", "list", "--charllm-dir", "elsewhere"])
    assert capsys.readouterr().out == with_runs
    assert "\n\n" not in with_runs


def test_a_simulated_run_asks_for_nothing(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """After a look at simulated H200s every shipped baseline of that machine was an orphan."""
    run = gpu_run()
    main(["baseline", "accept", "latest"])
    for asked in run.path.glob(f"*/{KEY}*"):
        shutil.rmtree(asked) if asked.is_dir() else asked.unlink()
    capsys.readouterr()
    main(["baseline", "list"])
    assert "no run on h200-sxm 1x1" in capsys.readouterr().out, "what it did not ask for, a real run makes an orphan"
    run._save_info(machine=replace(run.info.machine, simulated=True))
    main(["baseline", "list"])
    assert "orphans" not in capsys.readouterr().out
