"""How an engine tells where it is. The rank entry decides who hears it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called at changes of phase: "build", "compile" (the first step), "warm-up", "window" or "trace", "report".

    `step` counts the optimizer steps done in the phase; `expected_s` is when the next call is due (in warm-up after a
    group of steps, in the window when it is over); `tokens_per_s` is the speed of the whole job as warm-up saw it.
    Never called from within a timed window.
    """

    def __call__(
        self, phase: str, *, step: int | None = None, expected_s: float | None = None, tokens_per_s: float | None = None
    ) -> None: ...
