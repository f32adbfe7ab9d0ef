"""What a reader of one trainer's log is, and the few things it can say about a line."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Step:
    """A line that names an optimizer step, with the mean time of the steps since the line before it."""

    step: int
    seconds: float | None = None
    """None: the line counts steps, but tells no time."""
    resolution_s: float = 0.0
    """Rounding error of `seconds`: half a unit of the last digit printed."""
    total: int | None = None
    """Steps of the whole training, where the line names them."""
    sequences: int | None = None
    """Sequences of a global step."""
    tokens_per_s: float | None = None
    loss: float | None = None
    """Training loss. NaN where the trainer only says that it was."""


@dataclass(frozen=True, slots=True)
class Elapsed:
    """A line that tells how long all steps since `since` took: two of them with the same `since` make a `Step`."""

    step: int
    seconds: float
    resolution_s: float
    since: Hashable
    total: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """A training loss on a line that names no step."""

    value: float


@dataclass(frozen=True, slots=True)
class Restart:
    """The trainer says that training begins. `everywhere`: also on ranks other than the one that says so."""

    everywhere: bool


Event = Step | Elapsed | Loss | Restart


class LogReader(Protocol):
    """Knows the lines of one trainer. A fresh one a log; it is given every clean line of it, of all ranks, in order."""

    name: str
    title: str
    step_time_from: str
    tokens_per_s_of: str
    """"GPU", "job", or "" where the trainer prints no tokens per second."""
    yields_to: frozenset[str]
    """Names of trainers that are built on this one, and so print its lines beside their own."""
    remedy: str
    """What to do so that the trainer prints step times."""

    @staticmethod
    def matches(head: str) -> bool:
        """Whether the first lines of a log hold one that only this trainer, or one built on it, prints."""
        ...

    def events(self, text: str) -> Iterable[Event]: ...

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        """Tokens of a global step of that many sequences and where that is from; None and why not. After the log."""
        ...

    def why_untimed(self) -> str:
        """What is missing where steps were seen but no times, "" where nothing in particular is. After the log."""
        ...
