"""What agent and ranks tell the launcher besides a report. Times are CLOCK_MONOTONIC, shared by all of a host."""

from __future__ import annotations

from pytest_charllm.records import Record


class RankProgress(Record, frozen=True, kw_only=True):
    """What a rank is doing since `mono_s`. `expected_s`: when its next word is due, None where it cannot tell."""

    rank: int
    pid: int
    phase: str
    mono_s: float
    step: int | None = None
    expected_s: float | None = None
    tokens_per_s: float | None = None


class RankError(Record, frozen=True, kw_only=True):
    """Why a rank gave up. `kind` as in `Failure`; `where` is the innermost frame."""

    rank: int
    mono_s: float
    kind: str
    type: str
    message: str
    where: str
    traceback: str


class RankExit(Record, frozen=True, kw_only=True):
    """A rank that ended with another code than 0; negative: by that signal."""

    rank: int
    exitcode: int


class AgentReport(Record, frozen=True, kw_only=True):
    """What torchrun knew when its job failed: `exits` in the order it saw them, or the `error` of its own."""

    exits: tuple[RankExit, ...] = ()
    error_type: str | None = None
    error: str | None = None
