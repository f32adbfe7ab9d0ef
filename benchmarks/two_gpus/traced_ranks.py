"""Rank program of `exposed`: one scenario after the other through the traced pass, in the same processes.

``python traced_ranks.py FOLDER LIMIT_S``, as `ranks` but for its cases, which are "KEY TURN". On a CPU, where nothing
is traced, it is the diagnostic pass.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace
from ranks import main

from pytest_charllm.engines import load
from pytest_charllm.records import Pass, RankReport, RankRequest, tier
from pytest_charllm.scenario.key import parse_key

STEPS = 8
"""Whose median is the step without the profiler."""


def train(case: str, device: str, limit_s: float) -> tuple[RankReport, int]:
    scenario, on_cpu = parse_key(case.split()[0]), device == "cpu"
    window = tier("smoke", on_cpu).window
    request = RankRequest(
        nonce=case, scenario=scenario, pass_=Pass.DIAGNOSTIC if on_cpu else Pass.TRACED, device=device, out_dir=".",
        deadline_s=limit_s, window=window if on_cpu else replace(window, warmup_seconds=1.0, steady_steps=STEPS),
    )  # fmt: skip
    return load(scenario.engine)(request, lambda phase, **details: None), 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), train)
