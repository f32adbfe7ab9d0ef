"""What one rank says of its steps, in order: restarts, repeated lines, and times that have to be differences."""

from __future__ import annotations

import math
from array import array

from pytest_charllm.engines.logs.protocol import Elapsed, Event, Loss, Restart, Step

MOST_ENTRIES = 100_000
"""Entries and losses kept of one attempt, its first ones: bounds the memory, and is a day of steps of a second."""

RESOLVED = 0.01
"""A difference of two elapsed times is used once rounding is no more than this share of it."""

_SLOWEST_STEP_S = 1e6


class Series:
    """The last attempt: a step number that falls back, or a trainer that begins again, drops what was before."""

    def __init__(self) -> None:
        self.restarts = 0
        self.lines = 0
        """Lines with a step number, of all attempts."""
        self._begin()

    def _begin(self) -> None:
        self.steps = array("q")
        self.spans = array("q")
        self.step_s = array("d")
        self.resolution_s = array("d")
        self.tokens_per_s = array("d")
        self.losses = array("d")
        self.left_out = 0
        self.total: int | None = None
        self.sequences: int | None = None
        self.other_sequences: int | None = None
        self.not_finite_at: int | None = None
        """Last step before the first loss that was not finite; 0 where there was none."""
        self.seen: int | None = None
        """Step of the last line that named one."""
        self._timed: int | None = None
        """Step up to which time is accounted for."""
        self._since: Elapsed | None = None
        self._loss_at: int | None = None

    def add(self, event: Event) -> None:
        match event:
            case Step():
                self._step(event)
            case Elapsed():
                self._elapsed(event)
            case Loss():
                self._loss(event.value)
            case Restart():
                if self.seen is not None:
                    self._again()

    def _again(self) -> None:
        self.restarts += 1
        self._begin()

    def _goes_on(self, event: Step | Elapsed) -> bool:
        """Note what a line says beside its time. False where its step is not new, or cannot be true."""
        step, repeated = event.step, event.step == self.seen
        if event.total is not None and step > event.total:
            return False
        if self.seen is not None and step < self.seen:
            self._again()
        if self._timed is None and not repeated:
            self._timed = self.seen
        self.lines += not repeated
        self.seen = step
        self.total = event.total if event.total is not None else self.total
        if event.loss is not None and (step != self._loss_at or not math.isfinite(event.loss)):
            self._loss_at = step
            self._loss(event.loss)
        return self._timed is None or step > self._timed

    def _step(self, event: Step) -> None:
        if not self._goes_on(event) or event.seconds is None:
            return
        if event.sequences is not None:
            if self.sequences not in (None, event.sequences):
                self.other_sequences = self.sequences
            self.sequences = event.sequences
        span = 1 if self._timed is None else event.step - self._timed
        self._entry(event.step, span, event.seconds, event.resolution_s, event.tokens_per_s)

    def _elapsed(self, event: Elapsed) -> None:
        if not self._goes_on(event):
            return
        before = self._since
        if before is None or before.since != event.since or event.seconds <= before.seconds:
            self._since, self._timed = event, event.step
            return
        seconds, rounding_s = event.seconds - before.seconds, event.resolution_s + before.resolution_s
        if rounding_s <= RESOLVED * seconds:
            span = event.step - before.step
            self._since = event
            self._entry(event.step, span, seconds / span, rounding_s / span, None)

    def _entry(self, step: int, span: int, seconds: float, resolution_s: float, tokens_per_s: float | None) -> None:
        if not 0 < seconds < _SLOWEST_STEP_S:  # NaN too
            return
        self._timed = step
        if len(self.steps) >= MOST_ENTRIES:
            self.left_out += 1
            return
        self.steps.append(step)
        self.spans.append(span)
        self.step_s.append(seconds)
        self.resolution_s.append(resolution_s)
        if tokens_per_s is not None:
            self.tokens_per_s.append(tokens_per_s)

    def _loss(self, value: float) -> None:
        if not math.isfinite(value):
            if self.not_finite_at is None:
                self.not_finite_at = self.seen or 0
        elif len(self.losses) < MOST_ENTRIES:
            self.losses.append(value)

    @property
    def out_of_order(self) -> bool:
        """The step number falls back so often that several outputs without labels must be mixed in one file."""
        return self.restarts > 2 and 4 * self.restarts > self.lines
