"""What a trainer's own log says of its steps, or the one reason why it says nothing that can be judged."""

from __future__ import annotations

from enum import StrEnum

from pytest_charllm.records.base import Record
from pytest_charllm.records.launch import Warmup
from pytest_charllm.records.measurement import Finding


class LogStatus(StrEnum):
    """Why a log gives no step times. A reader that is not sure says so; it never guesses."""

    NO_LOG = "no-log"
    """No such file, not readable, or empty."""
    UNKNOWN = "unknown"
    """No reader knows the format."""
    AMBIGUOUS = "ambiguous"
    """Several readers claim the log, or its steps are out of order as of several ranks without labels."""
    NO_STEPS = "no-steps"
    """The trainer is known, but no line tells how long a step took."""
    INCOMPLETE = "incomplete"
    """Fewer steps after warm-up than the window needs."""
    NOT_FINITE = "not-finite"
    """A training loss is NaN or infinite."""


class LogSteps(Record, frozen=True, kw_only=True):
    """The steps after warm-up, one entry a line (or a refresh of a progress bar) that the trainer printed.

    `steps`, `spans` and `step_time_s` have one value an entry. An entry is the mean over `spans` optimizer steps, the
    last of which is the one numbered in `steps`, counted as the trainer counts.
    """

    path: str
    reader: str
    steps: tuple[int, ...]
    spans: tuple[int, ...]
    step_time_s: tuple[float, ...]
    step_time_from: str
    """What the times are made of, e.g. "printed", "tokens per second", "progress bar, running average"."""
    resolution_s: float
    """Largest rounding error of an entry's time: half a unit of the last digit that was printed."""
    tokens_per_step: int | None
    """Global tokens of one optimizer step. None: the log does not say, see `tokens_why`."""
    tokens_why: str
    """Where the number comes from, or why there is none."""
    tokens_per_s: tuple[float, ...] = ()
    """As the trainer prints it, one value an entry; empty where it does not."""
    tokens_per_s_of: str = ""
    """"GPU" or "job": what the printed tokens per second belong to."""
    losses: tuple[float, ...] = ()
    """Every training loss printed, in order, warm-up included; not one an entry."""
    warmup: Warmup
    """Steps left out at the beginning, and what ended it."""
    findings: tuple[Finding, ...] = ()
    """"interleaved", "restarted", "ends-early", "truncated", "not-steady", "cut" (too many), "coarse" (rounded)."""


class LogProblem(Record, frozen=True, kw_only=True):
    """No step times, and why. `message` is one line: what, where, what to do."""

    status: LogStatus
    path: str
    reader: str | None
    message: str
