"""From the lines of `mark_step` to instants, or to the one line that says what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_charllm.engines.script.marks import Marked, read_marks
from pytest_charllm.records import Unmeasured

T0_NS = 10**10


def mark(at_s: float, **changes: Any) -> dict[str, Any]:
    plain = {"line": "mark", "mono_ns": T0_NS + round(at_s * 1e9), "cpu_ns": 1000, "tokens": None, "pid": 7,
             "thread": "MainThread", "event": False}  # fmt: skip
    return plain | changes


def read(path: Path, *lines: dict[str, Any] | str) -> Marked | Unmeasured:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (path / "steps.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return read_marks(path / "steps.jsonl")


def test_host_marks_are_as_they_were_made(tmp_path: Path) -> None:
    marked = read(tmp_path, mark(0.0), mark(0.5, cpu_ns=2000))
    assert isinstance(marked, Marked)
    assert (marked.marks.mono_ns, marked.marks.cpu_ns) == ((T0_NS, T0_NS + 500_000_000), (1000, 2000))
    assert not marked.marks.on_device


def test_device_marks_are_placed_from_the_end_backwards(tmp_path: Path) -> None:
    """The host is ahead of the device, here by far: its own instants would place the window before the work."""
    lines = [mark(0.001 * n, event=True) for n in range(3)]
    spans = [{"line": "span", "s": 1.0}, {"line": "span", "s": 2.0}]
    end = {"line": "end", "mono_ns": T0_NS + 9 * 10**9, "s": 4.0, "peak_memory_bytes": 5}

    marked = read(tmp_path, *lines, *spans, end)

    assert isinstance(marked, Marked)
    assert [(instant - T0_NS) / 1e9 for instant in marked.marks.mono_ns] == [2.0, 3.0, 5.0]
    assert (marked.marks.on_device, marked.marks.cpu_ns, marked.peak_memory_bytes) == (True, (), 5)


def test_marks_before_the_device_was_in_use_are_left_out(tmp_path: Path) -> None:
    """A first call before the model moves has no event: a time between the two clocks would be wrong."""
    end = {"line": "end", "mono_ns": T0_NS + 10**9, "s": 0.0, "peak_memory_bytes": 5}
    lines = [mark(0.0), mark(0.1, event=True), mark(0.2, event=True), {"line": "span", "s": 0.3}, end]
    marked = read(tmp_path, *lines)
    assert isinstance(marked, Marked)
    assert len(marked.marks.mono_ns) == 2


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((None, 8, 9), (0, 8, 9)), ((7, 8, 9), (7, 8, 9)), ((7, None, 9), ()), ((None, None, None), ())],
)
def test_tokens_of_all_steps_or_of_none(
    tmp_path: Path, tokens: tuple[int | None, ...], expected: tuple[int, ...]
) -> None:
    """The first call ends no step that is measured; a gap later would pass for a step without tokens."""
    marked = read(tmp_path, *(mark(index, tokens=told) for index, told in enumerate(tokens)))
    assert isinstance(marked, Marked)
    assert marked.marks.tokens == expected


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        ((), "never-marked", "the script never called mark_step(); call it once a step"),
        ((mark(0),), "marked-once", "the script called mark_step() once; it bounds steps, so call it every step"),
        (
            (mark(0), mark(1, thread="Thread-1")),
            "several-threads",
            "mark_step() was called from 2 threads (MainThread and Thread-1); call it from the one that trains",
        ),
        ((mark(0), mark(1, pid=8)), "several-processes", "mark_step() was called from 2 processes (pid 7 and pid 8)"),
        ((mark(0), '{"line":"ma'), "cut", "line 2 of"),
        ((mark(0, event=True), mark(1, event=True)), "cut", "the exit functions of the script were not all called"),
    ],
)
def test_what_is_no_series_of_steps_is_told_in_one_line(
    tmp_path: Path, lines: tuple[dict[str, Any] | str, ...], status: str, told: str
) -> None:
    """Two threads or two processes that mark would make steps of half the length; one mark none at all."""
    found = read(tmp_path, *lines)
    assert isinstance(found, Unmeasured)
    assert found.status == status
    assert told in found.message
    assert "\n" not in found.message


def test_no_file_is_no_mark(tmp_path: Path) -> None:
    found = read_marks(tmp_path / "absent")
    assert isinstance(found, Unmeasured)
    assert found.status == "never-marked"
