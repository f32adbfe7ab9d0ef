"""How often the judge is wrong, and what it finds: simulated throughput, judged by the shipped rule.

Every check draws a record and a run of its own. The run's effect is one number for breach and confirmation. Noise is
normal; nothing but the record tells the rule how large it is. Prints one JSON line a setting and change:

    python benchmarks/judge_simulated.py [--checks 20000] [--seed 1]

`found`: share of checks called REGRESSION, with the confirmation; `breached`: by the first round alone, which is what
a judge without confirmation would call. `stated`: what verdicts say of false alarms, on average. `launches`: mean
number a check took, of at most 3 + 3.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_charllm.judge.metric import Question, one_run, yardstick
from pytest_charllm.judge.noise import Run
from pytest_charllm.judge.reference import Reference
from pytest_charllm.judge.tolerances import GPU, noise_factor
from pytest_charllm.judge.yardstick import Call, Yardstick

METRIC, RULE = "throughput", GPU["throughput"]
BUDGET, CONFIRM = 3, 3
STATED = 500
"""Checks whose stated rate is averaged: an integral each."""


@dataclass(frozen=True)
class Setting:
    """Standard deviations as ratios. `runs` 0: the reference is `launches` launches of the very run that is judged."""

    name: str
    launch: float
    run: float
    runs: int
    launches: int
    changes: tuple[float, ...]
    factor: float = noise_factor()
    early: bool = True
    """Whether rounds may end early: where the noise is assumed, the policy takes them whole."""


SETTINGS = (
    Setting("launch 0.5 %, run 0.5 %, 20 runs x 3", 0.005, 0.005, 20, 3, (0, 0.02, 0.03, 0.05)),
    Setting("the same, whole rounds", 0.005, 0.005, 20, 3, (0, 0.02, 0.03, 0.05), early=False),
    Setting("the same, 100 scenarios in the run", 0.005, 0.005, 20, 3, (0, 0.03, 0.05), factor=noise_factor(300)),
    Setting("launch 0.5 %, run 0.5 %, 8 runs x 3", 0.005, 0.005, 8, 3, (0, 0.03, 0.05)),
    Setting("launch 1.0 %, run 0.5 %, 20 runs x 3", 0.010, 0.005, 20, 3, (0, 0.03, 0.05)),
    Setting("launch 0.3 %, run 0.3 %, 20 runs x 3", 0.003, 0.003, 20, 3, (0, 0.015, 0.02, 0.03)),
    Setting("launch 0.3 %, run 0.3 %, 1 run x 3 (noise assumed)", 0.003, 0.003, 1, 3, (0, 0.03, 0.05), early=False),
    Setting("launch 2.5 %, run 0.5 %, 1 run x 3 (noise assumed)", 0.025, 0.005, 1, 3, (0, 0.05, 0.10), early=False),
    Setting("H200: launch 0.3 %, same card and run, 60 launches", 0.003, 0, 0, 60, (0, 0.01, 0.015)),
    Setting("H200: launch 0.3 %, same card and run, 9 launches", 0.003, 0, 0, 9, (0, 0.01, 0.015)),
)


def stick_of(setting: Setting, chance: np.random.Generator) -> Yardstick:
    """A record drawn anew, and what the judge makes of it."""
    if not setting.runs:
        return one_run(METRIC, RULE, (1 + chance.normal(0, setting.launch, setting.launches)).tolist(), setting.factor)
    levels = 1 + chance.normal(0, setting.run, (setting.runs, 1))
    drawn = levels + chance.normal(0, setting.launch, (setting.runs, setting.launches))
    values = tuple(tuple(row) for row in drawn.tolist())
    level = statistics.median(statistics.median(row) for row in values)
    runs = tuple(Run(0, ("GPU-0",), tuple(value / level for value in row)) for row in values)
    question = Question(budget=BUDGET, factor=setting.factor)
    return yardstick(METRIC, RULE, Reference(values, runs, RULE.floor), question)[0]


def round_of(stick: Yardstick, numbers: Sequence[float], early: bool) -> tuple[Call, int]:
    """One round, launch by launch where it may end early: what it says, and how many launches it took."""
    for launches in range(1 if early else len(numbers), len(numbers) + 1):
        call = stick.look(numbers[:launches], len(numbers)).call
        if call is not Call.UNDECIDED:
            return call, launches
    raise AssertionError("a complete round is never undecided")


def check(stick: Yardstick, numbers: Sequence[float], early: bool) -> tuple[bool, bool, int]:
    """(breached, found, launches) of one check, `numbers` being all launches it may take."""
    call, launches = round_of(stick, numbers[:BUDGET], early)
    if call is not Call.WORSE:
        return False, False, launches
    confirmed, more = round_of(stick, numbers[BUDGET:], early)
    return True, confirmed is Call.WORSE, launches + more


def simulate(setting: Setting, checks: int, seed: int) -> Iterator[dict[str, object]]:
    """The same records, runs and launches for every change."""
    results: dict[float, list[tuple[bool, bool, int]]] = {change: [] for change in setting.changes}
    tolerances: list[float] = []
    stated: list[float] = []
    chance = np.random.default_rng(seed)
    for _ in range(checks):
        stick = stick_of(setting, chance)
        tolerances.append(stick.tolerance(BUDGET))
        if len(stated) < STATED:
            stated.append(stick.rates((BUDGET, CONFIRM))[1] or 0.0)
        level = 1 + (chance.normal(0, setting.run) if setting.runs else 0.0)
        numbers = level + chance.normal(0, setting.launch, BUDGET + CONFIRM)
        for change, done in results.items():
            done.append(check(stick, (numbers - change).tolist(), setting.early))
    for change, done in results.items():
        breached, found, launches = (statistics.fmean(each) for each in zip(*done, strict=True))
        yield {
            "setting": setting.name,
            "slower_percent": round(100 * change, 2),
            "found": round(found, 5),
            "breached": round(breached, 5),
            **({} if change else {"stated": round(statistics.fmean(stated), 5)}),
            "launches": round(launches, 2),
            "mean_tolerance_percent": round(100 * statistics.fmean(tolerances), 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=20000, help="checks a setting, each with a record of its own")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for setting in SETTINGS:
        for line in simulate(setting, arguments.checks, arguments.seed):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
