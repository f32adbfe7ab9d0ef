"""Parts of a step by DeepSpeed's own timers (`wall_clock_breakdown`), in the diagnostic pass alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from deepspeed.utils.timer import (
    BACKWARD_GLOBAL_TIMER,
    BACKWARD_REDUCE_GLOBAL_TIMER,
    FORWARD_GLOBAL_TIMER,
    STEP_GLOBAL_TIMER,
)

from pytest_charllm.records import Pass, RankRequest

_PARTS = {
    "forward": FORWARD_GLOBAL_TIMER,
    "backward": BACKWARD_GLOBAL_TIMER,
    "reduction": BACKWARD_REDUCE_GLOBAL_TIMER,
    "update": STEP_GLOBAL_TIMER,
}


def are_on(request: RankRequest) -> bool:
    """Never where steps are timed, as they wait for the device; and not in a pipeline, where 0.19.8 starts those of the
    backward pass twice: in the stage's backward pass, and in the hook on its output."""
    return request.pass_ is Pass.DIAGNOSTIC and request.scenario.layout.pp == 1


def parts_s(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each part, the median over steps; nothing of no step. `steps`: an engine's timers after each one, in
    milliseconds."""
    return {part: median(step[name] for step in steps) / 1e3 for part, name in _PARTS.items()} if steps else {}
