"""Launches of unchanged code to a proposal: its split, its tolerance, what it lets be seen."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.main import main
from pytest_charllm.hardware import Machine
from pytest_charllm.judge.proposal import propose
from pytest_charllm.judge.rules import rules_of
from pytest_charllm.judge.tolerances import GPU, noise_factor
from pytest_charllm.records import METRICS, Fault, Measurement, Stack, Value, Verdict, tier
from pytest_charllm.store.run import RunDirectory

NIGHTLY = tier("nightly", False)
KEY = "llama3-1b.mb1"


def launch(throughput: float) -> Measurement:
    value = Value(value=throughput, unit=METRICS["throughput"].unit)
    return Measurement(
        launch_id="l",
        scenario_key=KEY,
        started="",
        stack=Stack(),
        device_uuids=("GPU-1",),
        values={"throughput": value},
    )


def nights(runs: int, launches: int, run_cov: float, launch_cov: float) -> list[list[Measurement]]:
    chance = random.Random(7)
    levels = [1 + chance.gauss(0, run_cov) for _ in range(runs)]
    return [[launch(60_000 * level * (1 + chance.gauss(0, launch_cov))) for _ in range(launches)] for level in levels]


def test_the_split_that_went_in_comes_out() -> None:
    """A proposal that takes the run's part for the launch's would see more than there is to see."""
    (found,) = propose(nights(40, 5, 0.01, 0.003), {"throughput": GPU["throughput"]}, NIGHTLY, is_cpu=False)
    assert found.noise.launch == pytest.approx(0.003, rel=0.25)
    assert found.noise.run == pytest.approx(0.01, rel=0.35)
    assert found.tolerance == pytest.approx(noise_factor() * (0.01**2 + 0.003**2 * 0.45) ** 0.5, rel=0.35)
    assert found.tolerance is not None
    assert found.sees is not None
    assert found.tolerance < found.sees < 2 * found.tolerance
    assert found.one_run is None  # five launches of a run do not show their spread


def test_a_sharper_error_rate_asks_for_more() -> None:
    """Alpha with its sign turned would propose the narrowest tolerance to whom wants the fewest alarms."""
    runs = [nights(1, 12, 0.0, 0.004)[0]]
    rules = {"throughput": GPU["throughput"]}
    rare, often = (propose(runs, rules, NIGHTLY, False, alpha)[0] for alpha in (1e-4, 1e-2))
    assert rare.one_run is not None
    assert often.one_run is not None
    assert rare.one_run > often.one_run
    assert (rare.sees or 0) > (often.sees or 0)
    assert rare.shipped >= GPU["throughput"].floor


def test_written_as_a_proposal_that_a_replay_can_read(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written where only a person looks for it; a tolerance that changed itself would hide the next regression."""
    run = gpu_run(launches=9)
    assert main(["calibrate", "latest", "--output", "p.toml"]) == 0
    out = capsys.readouterr().out
    assert "proposal: p.toml\nIt is no rule." in out
    rules = rules_of(tomllib.loads(Path("p.toml").read_text()), "p.toml")
    assert set(rules.tolerances["throughput"]) == {"floor", "one_run_floor"}
    assert f"# Proposed by pytest-charllm calibrate from {run.id}" in Path("p.toml").read_text()
    assert main(["calibrate", "latest"]) == 0
    assert (run.path / "proposal.toml").exists()


def test_what_is_not_unchanged_is_refused(
    gpu_run: Callable[..., RunDirectory], h200: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """An update in the middle would be taken for noise, and widen every tolerance for ever."""
    first = gpu_run(launches=9)
    for fields, says in (
        ({"faults": (Fault(name="slowdown", value=0.1),)}, "is injected"),
        ({"machine": replace(h200, simulated=True)}, "is simulated"),
        ({"every": {"injected": True}}, "is injected; calibrate by unchanged, real launches"),
        ({"every": {"simulated": True}}, "is simulated; calibrate by unchanged, real launches"),
        ({"tier": "smoke"}, "tier of run"),
        ({"first": {"stack": Stack(torch="2.12.0")}}, "torch changed from 2.12.0 to 2.11.0"),
    ):
        other = gpu_run(launches=9, verdict=Verdict.PASS, **fields)
        assert main(["calibrate", first.id, other.id]) == 2
        assert says in capsys.readouterr().err
    few = gpu_run(launches=3)
    assert main(["calibrate", few.id]) == 2
    assert "nothing to propose: no scenario has 8 launches" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["calibrate", first.id, "--alpha", "0.7"])
