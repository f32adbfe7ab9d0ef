"""The scripts that docs/judge.md quotes: what they print, and that they judge by the rule that ships."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from pytest_charllm.records import Judgement, NeedMore, Verdict

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RECORDED = ROOT / "benchmarks" / "judge_recorded.py"
LEVEL = 64000.0


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/judge_simulated.py as a module, its neighbours importable."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import judge_simulated

    return judge_simulated


def recorded(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, RECORDED, path], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["h200_launches.jsonl", "h200_mb2_launches.jsonl"])
def test_recorded_launches_are_told_apart(name: str) -> None:
    """Real launches of one H200: from 1.3 % on red, below 0.9 % never, and a host sleep that cost nothing is none."""
    done = recorded(DATA / name)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    assert [line["tag"] for line in lines] == [row["tag"] for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert set(line) == {"tag", "change", "verdict"}
        assert line["verdict"] in set(Verdict)
        if line["change"] >= 0.013:
            assert line["verdict"] == "REGRESSION", line
        if line["change"] < 0.009:
            assert line["verdict"] != "REGRESSION", line
        if row["inject"] in ("gemm", "item", "unfused"):
            assert line["verdict"] == "REGRESSION"
        if row["inject"] == "host":
            assert line["verdict"] == "PASS"


def write(path: Path, steps: list[list[float]], inject: str = "none") -> Path:
    rows = [{"tag": f"l{i}", "inject": inject, "step_ms": each} for i, each in enumerate(steps)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("step", [float("nan"), -3.0, 0.0])
def test_a_broken_launch_costs_its_own_line_alone(tmp_path: Path, step: float) -> None:
    """A clock that ran backwards in one launch is no reason to lose the other nine."""
    done = recorded(write(tmp_path / "f", [[100.0, 101.0]] * 9 + [[100.0, step]]))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["verdict"] for line in lines] == ["PASS"] * 9 + ["INVALID"]
    assert lines[-1]["change"] is None
    assert "clock that ran backwards" in lines[-1]["reason"]


def test_a_file_of_zero_spread_or_one_launch(tmp_path: Path) -> None:
    """Nothing to learn noise from leaves the floor; nothing to compare with is said."""
    same = [json.loads(line) for line in recorded(write(tmp_path / "f", [[100.0]] * 9 + [[101.5]])).stdout.splitlines()]
    assert [line["verdict"] for line in same] == ["PASS"] * 9 + ["REGRESSION"]
    (alone,) = recorded(write(tmp_path / "g", [[100.0]])).stdout.splitlines()
    assert json.loads(alone)["verdict"] == "NO_BASELINE"


@pytest.mark.parametrize("text", ["{", '{"tag": "a"}', '{"tag": "a", "inject": "none", "step_ms": ["x"]}', "[]"])
def test_what_is_no_launch_is_named_by_its_line(tmp_path: Path, text: str) -> None:
    """One clear line, no traceback."""
    path = tmp_path / "f"
    path.write_text('{"tag": "a", "inject": "none", "step_ms": [1.0]}\n' + text)
    done = recorded(path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "line 2 is not a launch" in done.stderr
    missing = recorded(tmp_path / "nowhere")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)


def test_simulated_rates(scripts: ModuleType) -> None:
    """A few hundred of the checks behind the figures of docs/judge.md."""
    rates = {line["slower_percent"]: line["found"] for line in scripts.simulate(scripts.SETTINGS[0], 600, seed=2)}
    assert rates[0] <= 0.005
    assert rates[3.0] >= 0.85
    assert rates[5.0] >= 0.99
    h200 = {line["slower_percent"]: line["found"] for line in scripts.simulate(scripts.SETTINGS[-1], 600, seed=2)}
    assert h200[1.5] >= 0.95


@pytest.mark.parametrize("change", [0.0, 0.02, 0.03])
def test_what_is_simulated_is_what_ships(make: SimpleNamespace, scripts: ModuleType, change: float) -> None:
    """Figures of a rule that the policy does not follow would be worth nothing."""
    chance = np.random.default_rng(4)
    setting = scripts.SETTINGS[0]
    for _ in range(20):
        state = chance.bit_generator.state
        stick = scripts.stick_of(setting, chance)
        chance.bit_generator.state = state
        levels = 1 + chance.normal(0, setting.run, (setting.runs, 1))
        history = levels + chance.normal(0, setting.launch, (setting.runs, setting.launches))
        record = make.record((LEVEL * history).tolist())
        new = (1 - change + chance.normal(0, setting.run) + chance.normal(0, setting.launch, 6)).tolist()
        _, found, launches = scripts.check(stick, new, early=True)
        rounds = [[make.gpu({"throughput": LEVEL * new[0]})]]
        confirming = iter(new[scripts.BUDGET :])
        while isinstance(outcome := make.decide(rounds, record), NeedMore):
            if outcome.confirms and len(rounds) < 2:
                rounds.append([])
            value = next(confirming) if outcome.confirms else new[len(rounds[0])]
            rounds[-1].append(make.gpu({"throughput": LEVEL * value}))
        assert isinstance(outcome, Judgement)
        assert (outcome.verdict is Verdict.REGRESSION, outcome.launches) == (found, launches)


def test_ours_sees_less_than_every_tools_rule(scripts: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """What docs/judge.md claims of the peers, on a few of its checks."""
    import judge_peers

    judge_peers.simulated(scripts.SETTINGS[0], 2000, seed=1)
    ours, *peers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tools = [peer for peer in peers if not peer["rule"].startswith("no tool")]
    assert len(tools) == 5
    assert all(peer["seen_percent_equal"] > ours["seen_percent_equal"] for peer in tools)
