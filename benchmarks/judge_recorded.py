"""Recorded launches of one run on one card, each judged against the unchanged others of it.

    python benchmarks/judge_recorded.py FILE

FILE has one launch a line, as tests/data/h200_launches.jsonl. Prints one JSON line each: `tag`; `change`, its median
step over the median of the other unchanged launches' medians, less 1: a fraction, positive = slower; `verdict`. A
launch that cannot be judged has a `reason`. In one run only launches differ, so nothing is assumed about noise, and
there is no fresh launch that could confirm.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recorded import UNCHANGED, print_lines, read_launches

from pytest_charllm.judge.metric import one_run
from pytest_charllm.judge.tolerances import GPU
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import Verdict

VERDICTS = {
    Call.WITHIN: Verdict.PASS,
    Call.BETTER: Verdict.IMPROVED,
    Call.WORSE: Verdict.REGRESSION,
    Call.UNRELIABLE: Verdict.INCONCLUSIVE,
}


class Launch(NamedTuple):
    """`step_s`: median step, None with the `reason` where there is none."""

    tag: str
    unchanged: bool
    step_s: float | None
    reason: str = ""


def read(path: Path) -> list[Launch]:
    """Raises `ValueError` naming the line that is not a launch."""
    return read_launches(path, _launch)


def _launch(row: dict[str, Any]) -> Launch:
    steps_ms = [float(step) for step in row["step_ms"]]
    reason = unusable(steps_ms)
    step_s = None if reason else statistics.median(steps_ms) / 1e3
    return Launch(str(row["tag"]), row["inject"] == UNCHANGED, step_s, reason)


def unusable(steps_ms: Sequence[float]) -> str:
    """Why these steps give no time, "" where they do."""
    if not steps_ms:
        return "no steps"
    wrong = next((step for step in steps_ms if not math.isfinite(step) or step <= 0), None)
    return "" if wrong is None else f"a step of {wrong:g} ms: not a number, or a clock that ran backwards"


def judged(launches: Sequence[Launch]) -> Iterator[dict[str, object]]:
    for launch in launches:
        others = [other.step_s for other in launches if other.unchanged and other is not launch and other.step_s]
        if launch.step_s is None:
            yield {"tag": launch.tag, "change": None, "verdict": Verdict.INVALID, "reason": launch.reason}
        elif not others:
            reason = "no other unchanged launch in the file"
            yield {"tag": launch.tag, "change": None, "verdict": Verdict.NO_BASELINE, "reason": reason}
        else:
            # The batch is fixed, so that a step's time is its throughput, turned over: the same rule holds.
            look = one_run("step_time", GPU["throughput"], others).look([launch.step_s], 1)
            yield {"tag": launch.tag, "change": round(look.change, 6), "verdict": VERDICTS[look.call]}


if __name__ == "__main__":
    sys.exit(print_lines(__doc__, read, judged))
