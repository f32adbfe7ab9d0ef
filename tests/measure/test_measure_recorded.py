"""Recorded launches of one H200: which way to energy tells a slower launch from an unchanged one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "h200_launches.jsonl"
SCRIPT = ROOT / "benchmarks" / "telemetry_recorded.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import telemetry_recorded

    return telemetry_recorded


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def lines_of(script: ModuleType, path: Path, changed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    return list(script.measured(script.read(path)))


def not_told(launches: list[Any], way: Callable[[Any], float]) -> list[str]:
    """Slowed launches that this way puts among the unchanged ones."""
    slowed = {row["tag"] for row in rows() if row["inject"] in ("gemm", "item")}
    highest = max(way(launch) for launch in launches if launch.unchanged)
    return [launch.tag for launch in launches if launch.tag in slowed and way(launch) <= highest]


def test_one_line_a_launch() -> None:
    """What a nightly job parses: four keys, every launch, and most of these were not bracketed."""
    done = subprocess.run([sys.executable, SCRIPT, FILE], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["tag"] for line in lines] == [row["tag"] for row in rows()]
    assert all(set(line) == {"tag", "energy_per_token_mj", "bracketed", "reason"} for line in lines)
    assert [line["tag"] for line in lines if line["bracketed"]] == ["g3_2"]
    assert all(line["reason"].startswith("not bracketed: ") for line in lines if not line["bracketed"])


def test_the_one_second_average_tells_every_slowed_launch(script: ModuleType) -> None:
    """One extra matmul a step costs 1 % of energy: the spread of unchanged launches has to stay well below that."""
    launches = script.read(FILE)
    assert script.spread(launches, script.by_average) <= 0.004
    assert not_told(launches, script.by_average) == []


def test_the_raw_counter_hides_a_slowed_launch(script: ModuleType) -> None:
    """Read without interpolation it moves in steps of 100 ms: a calm spread, and one slower launch among the others."""
    launches = script.read(FILE)
    assert not_told(launches, script.by_raw_counter) == ["g1_4"]


def test_instant_power_scatters_more(script: ModuleType) -> None:
    """It sees a quarter of the time, and which quarter is luck."""
    assert script.spread(script.read(FILE), script.by_instant) > 0.004


def dropped(row: dict[str, Any], keep: Callable[[int, int], bool]) -> dict[str, Any]:
    samples = row["telemetry"]
    return row | {"telemetry": [each for i, each in enumerate(samples) if keep(i, len(samples))]}


@pytest.mark.parametrize(
    "keep",
    [lambda i, n: i % 5 < 3, lambda i, n: i < 0.6 * n, lambda i, n: not 0.3 * n < i < 0.7 * n],
    ids=["every-fifth-two", "the-end", "the-middle"],
)
def test_a_trace_with_holes_carries_no_energy(
    script: ModuleType, tmp_path: Path, keep: Callable[[int, int], bool]
) -> None:
    """40 % of a recorded trace gone, wherever: a mean over what is left would look like any other."""
    line = lines_of(script, tmp_path / "f", [dropped(rows()[1], keep)])[0]
    assert line["energy_per_token_mj"] is None
    assert "% of the window, 95 % needed" in line["reason"]


def test_a_stuck_sensor_carries_no_energy(script: ModuleType, tmp_path: Path) -> None:
    """One value for five seconds, while the instant power beside it moves."""
    row = rows()[1]
    stuck = [[each[0], 690.0, *each[2:]] for each in row["telemetry"]]
    line = lines_of(script, tmp_path / "f", [row | {"telemetry": stuck}])[0]
    assert line["energy_per_token_mj"] is None
    assert "stale: unchanged for 5.2 s while power_instant_w moved" in line["reason"]


def test_order_and_repeats_change_nothing(script: ModuleType, tmp_path: Path) -> None:
    """A file put together from parts counts no moment twice."""
    row = rows()[1]
    twice = row | {"telemetry": [*reversed(row["telemetry"]), *row["telemetry"][:20]]}
    assert lines_of(script, tmp_path / "f", [twice]) == lines_of(script, tmp_path / "g", [row])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"telemetry": []}, "0 readings of power_1s_avg_w"),
        ({"step_ms": []}, "no steps, so no tokens"),
        ({"window_s": 0.0}, "a window of 0 s is shorter than 1 s"),
        ({"window_s": 60.0}, "power_1s_avg_w seen in 9 % of the window, 95 % needed"),
    ],
)
def test_what_cannot_be_measured_has_a_reason(
    script: ModuleType, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    """Null and why, for this launch alone."""
    broken, whole = lines_of(script, tmp_path / "f", [rows()[1] | change, rows()[2]])
    assert broken["energy_per_token_mj"] is None
    assert broken["reason"].startswith(reason)
    assert whole["energy_per_token_mj"] is not None


def test_what_is_no_launch_is_named_by_its_line(tmp_path: Path) -> None:
    """A broken line must not pass for a launch without energy."""
    (tmp_path / "f").write_text(json.dumps(rows()[0]) + '\n{"tag": "x"}\n')
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "f"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "line 2 is not a launch" in done.stderr


@pytest.mark.parametrize(("data", "says"), [(b"", "no launch in it"), (b"\x9c\xff\n", "no text, so no launches")])
def test_a_file_without_launches_is_told(tmp_path: Path, data: bytes, says: str) -> None:
    """Nothing and exit code 0 was what a job got whose recording had failed."""
    file = tmp_path / "launches.jsonl"
    file.write_bytes(data)
    done = subprocess.run((sys.executable, SCRIPT, file), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{file}: {says}\n")
