"""Locked clocks come back, however the process ends that wanted them: over a fake of the vendor's library alone."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_charllm.devices.clock_guard import locked_clocks
from pytest_charllm.errors import DeviceError

PACKAGE = Path(__file__).parents[2] / "pytest_charllm"
MODULE = "pytest_charllm.devices.clocks"
GPUS = ("GPU-a", "GPU-b")
LOCKED = [["nvmlDeviceSetGpuLockedClocks", gpu, 1200, 1200] for gpu in GPUS]
GIVEN_BACK = [["nvmlDeviceResetGpuLockedClocks", gpu] for gpu in GPUS]
LIMIT_S = 30.0


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[object]]]:
    """What the fake library was asked to set, in order; processes started from now on find it first."""
    log = tmp_path / "nvml.jsonl"
    log.touch()
    paths = [str(Path(__file__).with_name("fake_vendor")), str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("FAKE_NVML", str(log))

    def read() -> list[list[object]]:
        return [call for line in log.read_text().splitlines() if (call := json.loads(line))[0] != "nvmlInit"]

    return read


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """The program, once it has its clocks; gone at the end of the test, with all that it started."""
    started: list[subprocess.Popen[str]] = []

    def program(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("clocks_program.py")), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + LIMIT_S
    while not (held := condition()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return held


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("normal", None, 0),
        ("exception", None, 1),
        ("wait", signal.SIGINT, -signal.SIGINT),
        ("wait", signal.SIGTERM, -signal.SIGTERM),
        ("wait", signal.SIGKILL, -signal.SIGKILL),
        ("fork", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_clocks_come_back_however_their_user_ends(
    how: str, number: signal.Signals | None, code: int, calls: Callable[[], list[list[object]]],
    start: Callable[[str], subprocess.Popen[str]],
) -> None:  # fmt: skip
    """A card that is left at a low clock is slow for whoever comes next, who has no way to see why."""
    process = start(how)
    workers: list[psutil.Process] = []
    if number is not None:
        assert calls() == LOCKED
        workers = [each for each in psutil.Process(process.pid).children() if MODULE not in each.cmdline()]
        process.send_signal(number)
    try:
        assert process.wait(timeout=LIMIT_S) == code
        assert len(workers) == (how == "fork")
        assert until(lambda: calls() == [*LOCKED, *GIVEN_BACK])
    finally:
        for worker in workers:
            worker.kill()


def guards() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if MODULE in each.cmdline()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_clocks_come_back_where_the_guard_itself_is_ended(
    number: signal.Signals, calls: Callable[[], list[list[object]]]
) -> None:
    """Whoever cleans up a node by killing what he does not know must not leave locked cards behind."""
    with locked_clocks(GPUS, 1200):
        (guard,) = guards()
        guard.send_signal(number)
        guard.wait(timeout=LIMIT_S)
    assert calls()[:2] == LOCKED
    assert calls()[2:4] == GIVEN_BACK
    assert guards() == []


@pytest.mark.parametrize(
    ("function", "code", "told"),
    [
        ("nvmlDeviceSetGpuLockedClocks", 4, "cannot be locked to 1200 MHz: NoPermission.*needs root"),
        ("nvmlDeviceSetGpuLockedClocks", 2, "cannot be locked to 1200 MHz: InvalidArgument"),
        ("nvmlInit", 9, "cannot be locked to 1200 MHz: DriverNotLoaded"),
    ],
)
def test_a_refusal_is_one_line_and_runs_nothing(
    function: str, code: int, told: str, calls: Callable[[], list[list[object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch at other clocks than it says it ran at would go on record under the wrong name."""
    monkeypatch.setenv("FAKE_NVML_REFUSES", json.dumps({function: code}))
    with pytest.raises(DeviceError, match=told), locked_clocks(GPUS, 1200):
        pytest.fail("the block ran")
    assert GIVEN_BACK[0] not in calls()


def test_clocks_that_stay_locked_are_told_with_the_command(
    calls: Callable[[], list[list[object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would be the one thing worse than a locked card."""
    monkeypatch.setenv("FAKE_NVML_REFUSES", json.dumps({"nvmlDeviceResetGpuLockedClocks": 999}))
    with pytest.raises(DeviceError, match="nvidia-smi -i GPU-b -rgc"), locked_clocks(("GPU-b",), 1200):
        pass
    assert calls().count(["nvmlDeviceResetGpuLockedClocks", "GPU-b"]) > 1


def imported(path: Path) -> set[Path]:
    """The files of the package that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = PACKAGE.parent / Path(*name.split("."))
            found |= {each for each in (file.with_suffix(".py"), file / "__init__.py") if each.exists()}
    return found


def test_a_sampler_reaches_no_code_that_sets_anything() -> None:
    """It runs beside every launch, as whoever may read: nothing that it can call may change what it measures."""
    reached, waiting = set(), [PACKAGE / "telemetry" / "sampler.py", *sorted((PACKAGE / "engines").rglob("*.py"))]
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += imported(path)
    assert PACKAGE / "devices" / "nvml.py" in reached
    assert not {PACKAGE / "devices" / "clocks.py", PACKAGE / "devices" / "clock_guard.py"} & reached


def test_only_the_guard_can_set_clocks_and_nothing_imports_it() -> None:
    """It is a process of its own, so that nothing else can call it by mistake."""
    clocks = PACKAGE / "devices" / "clocks.py"
    files = [path for path in PACKAGE.rglob("*.py") if path != clocks]
    assert not [path for path in files if clocks in imported(path)]
    assert not [path for path in files if "LockedClocks" in path.read_text() or "nvmlDeviceSet" in path.read_text()]
