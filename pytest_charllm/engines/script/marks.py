"""From the lines that `mark_step` left to instants on one clock, or to why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from pytest_charllm.records import StepMarks, Unmeasured


class Mark(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="mark"):
    mono_ns: int
    cpu_ns: int
    tokens: int | None
    pid: int
    thread: str
    event: bool


class Span(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="span"):
    s: float


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="end"):
    mono_ns: int
    s: float
    peak_memory_bytes: int


_LINE = msgspec.json.Decoder(Mark | Span | End)


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    marks: StepMarks
    peak_memory_bytes: int | None


def read_marks(path: Path) -> Marked | Unmeasured:
    """What this rank's script marked, once it has ended."""
    lines: list[Mark | Span | End] = []
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        text = b""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            lines.append(_LINE.decode(line))
        except msgspec.DecodeError as error:
            return _unmeasured("cut", f"line {number} of {path} is not one of mark_step ({error})")
    marks = [line for line in lines if isinstance(line, Mark)]
    if (trouble := _trouble(marks)) is not None:
        return trouble
    first = next((index for index, mark in enumerate(marks) if mark.event), None)
    if first is None:
        return Marked(marks=_of_host(marks), peak_memory_bytes=None)
    ends = [line for line in lines if isinstance(line, End)]
    spans = [line.s for line in lines if isinstance(line, Span)]
    marks = marks[first:]  # what was marked before the device was in use is warm-up anyway
    if len(ends) != 1 or len(spans) != len(marks) - 1:
        return _unmeasured("cut", f"{path} has no end: the exit functions of the script were not all called")
    return Marked(marks=_of_device(marks, spans, ends[0]), peak_memory_bytes=ends[0].peak_memory_bytes)


def _trouble(marks: Sequence[Mark]) -> Unmeasured | None:
    """Why these calls do not bound steps, or None."""
    if not marks:
        advice = "call it once a step (from pytest_charllm.step import mark_step), or name the log: Script(log=...)"
        return _unmeasured("never-marked", f"the script never called mark_step(); {advice}")
    for what, names in (
        ("processes", {f"pid {mark.pid}" for mark in marks}),
        ("threads", {mark.thread for mark in marks}),
    ):
        if len(names) > 1:
            told = " and ".join(sorted(names)[:2])
            advice = "call it from the one that trains, once a step"
            return _unmeasured(f"several-{what}", f"mark_step() was called from {len(names)} {what} ({told}); {advice}")
    if len(marks) == 1:
        return _unmeasured("marked-once", "the script called mark_step() once; it bounds steps, so call it every step")
    return None


def _of_host(marks: Sequence[Mark]) -> StepMarks:
    return StepMarks(
        mono_ns=tuple(mark.mono_ns for mark in marks),
        cpu_ns=tuple(mark.cpu_ns for mark in marks),
        tokens=_tokens(marks),
    )


def _of_device(marks: Sequence[Mark], spans_s: Sequence[float], end: End) -> StepMarks:
    """Backwards from the one instant that both clocks know, the end."""
    last_ns = end.mono_ns - round(end.s * 1e9)
    back_ns = accumulate((-round(span_s * 1e9) for span_s in reversed(spans_s)), initial=last_ns)
    return StepMarks(mono_ns=tuple(back_ns)[::-1], tokens=_tokens(marks), on_device=True)


def _tokens(marks: Sequence[Mark]) -> tuple[int, ...]:
    """All or nothing: steps of which some do not say make no rate. The first call may not end a step of its own."""
    known = tuple(mark.tokens for mark in marks[1:] if mark.tokens is not None)
    return (marks[0].tokens or 0, *known) if len(known) == len(marks) - 1 else ()


def _unmeasured(status: str, message: str) -> Unmeasured:
    return Unmeasured(status=status, message=message)
