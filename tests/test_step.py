"""`mark_step` in a script of somebody's own: what it costs, what it writes, and that it never stands in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import pytest_charllm.step as step

Lines = Callable[[], list[dict[str, object]]]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What was written so far, in a launch."""
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv(step.STEPS_PATH, str(path))
    step._recorder.cache_clear()
    monkeypatch.setattr(step.atexit, "register", lambda *_: None)
    yield lambda: [json.loads(line) for line in path.read_bytes().splitlines()]
    step._recorder.cache_clear()


class Event:
    """In the place of a CUDA event: recorded when a device that is `behind` gets there."""

    passed = 0
    made: list[Event] = []  # noqa: RUF012  one device

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing, "elapsed_time needs it"

    def record(self) -> None:
        self.index = len(Event.made)
        Event.made.append(self)

    def query(self) -> bool:
        return self.index < Event.passed

    def synchronize(self) -> None:
        Event.passed = len(Event.made)

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query(), "asking for a time the device has not reached waits, or raises"
        return 100.0 * (end.index - self.index)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    """torch with a CUDA context."""
    Event.made, Event.passed = [], 0
    fake = SimpleNamespace(
        cuda=SimpleNamespace(is_initialized=lambda: True, Event=Event, max_memory_allocated=lambda: 1 << 30)
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    return Event


def test_marks_are_lines_of_both_clocks(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is on disk when it returns: what is lost with a killed process is what one wants to know."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    step.mark_step()
    assert len(lines()) == 1
    step.mark_step(tokens=4096)

    first, second = lines()
    assert second["mono_ns"] > first["mono_ns"]  # type: ignore[operator]
    assert second["cpu_ns"] >= first["cpu_ns"]  # type: ignore[operator]
    assert (first["tokens"], second["tokens"]) == (None, 4096)
    assert (first["pid"], first["thread"], first["event"]) == (os.getpid(), "MainThread", False)


def test_tokens_are_whole_numbers(lines: Lines) -> None:
    """NaN went into the file and made all of it unreadable; an integer of numpy's ended the training inside json."""
    step.mark_step(tokens=SimpleIndex())  # type: ignore[arg-type]
    assert [line["tokens"] for line in lines()] == [4096]
    for wrong, raised in ((float("nan"), TypeError), (4096.0, TypeError), ("4096", TypeError), (-1, ValueError)):
        with pytest.raises(raised, match="mark_step: tokens is"):
            step.mark_step(tokens=wrong)  # type: ignore[arg-type]
    assert len(lines()) == 1


class SimpleIndex:
    """As numpy.int64 and a torch tensor of one integer are: no int, but a whole number."""

    def __index__(self) -> int:
        return 4096


def test_device_is_never_waited_for_until_the_end(lines: Lines, cuda: type[Event]) -> None:
    """A host that waits for the device at every step measures itself: up to 2 % of the step were seen for one wait."""
    for _ in range(4):
        step.mark_step()
    assert [line["line"] for line in lines()] == ["mark"] * 4

    cuda.passed = 3
    step.mark_step()
    assert [line["line"] for line in lines()] == ["mark"] * 5 + ["span"] * 2

    recorder = step._recorder()
    assert recorder is not None
    recorder._end(os.getpid())
    written = lines()
    assert [line["s"] for line in written if line["line"] == "span"] == pytest.approx([0.1] * 4)
    assert written[-1]["line"] == "end"
    assert written[-1]["s"] == pytest.approx(0.1)
    assert written[-1]["peak_memory_bytes"] == 1 << 30


def test_fork_that_ends_does_not_end_the_device(lines: Lines, cuda: type[Event]) -> None:
    """A data loader's worker that leaves through Python's exit has inherited the exit function, but no device."""
    step.mark_step()
    recorder = step._recorder()
    assert recorder is not None
    recorder._end(os.getpid() + 1)
    assert [line["line"] for line in lines()] == ["mark"]


def test_full_disk_is_told_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody's training must not end because we could not take a note."""
    monkeypatch.setenv(step.STEPS_PATH, str(tmp_path / "absent" / "steps.jsonl"))
    step._recorder.cache_clear()
    step.mark_step()
    step.mark_step()
    step._recorder.cache_clear()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "absent/steps.jsonl not writable, steps are no longer recorded: No such file or directory" in told


def test_outside_of_a_launch_it_does_nothing_and_needs_nothing() -> None:
    """Scripts keep the call in production: it may neither load torch nor leave a file there."""
    code = (
        "import sys; from pytest_charllm.step import mark_step\n"
        "for _ in range(3): mark_step(tokens=1)\n"
        "print([name for name in ('torch', 'msgspec', 'pytest', 'numpy') if name in sys.modules])"
    )
    environment = {name: value for name, value in os.environ.items() if name != step.STEPS_PATH}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"
