"""What is on record beside a launch's own values is shown with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.main import main
from pytest_charllm.store.baselines import BaselineStore, read
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"
PATH = Path("baselines") / "h200-sxm" / "1x1" / f"{KEY}.json"


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_traced_steps_and_ranks_are_shown(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """They were on record, and the only way to read them was the file itself."""
    ranks = {"sm_clock": (1980.0, 1755.0, None), "throttle_hw": (0.0, 0.0, 0.0), "core_temp_end": (None, None, None)}
    run = gpu_run(every={"per_rank": ranks}, first={"per_rank": {"sm_clock": (1980.0, 1999.0, None)}})
    main(["baseline", "accept", "latest"])
    baseline = read(PATH)
    assert baseline is not None
    traced = {"compute_time": 0.0726, "host_gap": 0.0025}
    BaselineStore.of(Path(".charllm"), Path("baselines")).write(
        replace(baseline, stacks=(replace(baseline.reference, traced=traced),)), run.info.machine
    )
    capsys.readouterr()
    assert main(["baseline", "show", KEY]) == 0
    told = rows(capsys.readouterr().out)
    assert told[told.index(["traced", "step", "one", "launch"]) + 2 :] == [
        ["compute", "72.6", "ms"],
        ["host", "gap", "2.50", "ms"],
        [],
        ["per", "rank", "lowest", "rank", "highest", "rank"],
        told[-3],  # the rule below the headers
        ["HW", "slowdown", "0.0", "%", "0.0", "%"],
        ["SM", "MHz", "1,755", "1", "1,980", "0"],
    ]


def test_without_them_nothing_is_said(gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    """Older files, single ranks and nights without a trace have neither."""
    gpu_run()
    main(["baseline", "accept", "latest"])
    capsys.readouterr()
    main(["baseline", "show", KEY])
    out = capsys.readouterr().out
    assert "traced" not in out
    assert "per rank" not in out
    assert not out.endswith("\n\n")
