"""The smallest slowdown that the rules of other tools see, and that ours sees, at the same rate of false alarms.

    python benchmarks/judge_peers.py [--file tests/data/h200_launches.jsonl] [--checks 20000] [--seed 1]

Each rule is reduced to the number it compares with a limit. `as_shipped`: with the limit its tool ships or documents;
`equal`: with the limit at which unchanged code breaches as rarely as by our rule. Simulated series have 20 runs of 3
launches on record and a new run; a change is seen where 9 of 10 new runs are called. Recorded series are one run's
launches, each held against the unchanged others; the limit is then the one that just spares all unchanged launches.
One JSON line a series and rule.

What is compared is what a tool does with the launches it is given, in its favour where it could be either: Otava gets
the right split of the series for free, ReFrame's band is around a long-run median. And an `equal` limit is a gift to
all of them: it was found from thousands of runs of unchanged code, where our rule learns the noise from 20.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import judge_recorded
import numpy as np
from judge_simulated import BUDGET, CONFIRM, SETTINGS, Setting, check, stick_of
from recorded import UNCHANGED

SEEN = 0.9
LEAST_FALSE = 5e-4
"""Rates below are not told apart by the checks simulated."""
HIGHEST = 0.20


class Peer(NamedTuple):
    """`loss`: from history (checks, runs, launches) and new launches (checks, n) to what the rule compares with a
    limit, positive = slower. `limit`: as shipped, None where there is no such tool."""

    name: str
    new_launches: int
    limit: float | None
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray]


def to_one_recording(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    return 1 - new[:, 0] / history[:, -1, 0]


def to_long_run_median(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    return 1 - new[:, 0] / np.median(history.reshape(len(history), -1), axis=1)


def to_last_run(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    return 1 - np.median(new, axis=1) / np.median(history[:, -1], axis=1)


def all_to_last_run(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    """With so few launches asv's Mann-Whitney cannot reach its p < 0.002: what is left is the factor."""
    return 1 - np.median(new, axis=1) / np.median(history[:, -1], axis=1)


def all_to_all(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    return 1 - np.median(new, axis=1) / np.median(history.reshape(len(history), -1), axis=1)


def students_t(history: np.ndarray, new: np.ndarray) -> np.ndarray:
    """t of the newest night's median against all before it."""
    nights = np.median(history, axis=2)
    spread = nights.std(axis=1) * math.sqrt(1 + 1 / nights.shape[1])
    return (nights.mean(axis=1) - np.median(new, axis=1)) / spread


PEERS = (
    Peer("fixed 5 % against one recording (Megatron-LM)", 1, 0.05, to_one_recording),
    Peer("band of 5 % around a long-run median (ReFrame)", 1, 0.05, to_long_run_median),
    Peer("compare-fail=median:5% against the last run (pytest-benchmark)", 3, 0.05, to_last_run),
    Peer("factor 1.1 against the last run, 6 launches (asv)", 6, 0.0909, all_to_last_run),
    Peer("Student t, p < 0.001, split known (Otava)", 3, 3.883, students_t),
    Peer("no tool: 6 launches against all, limit set by one who knows the noise", 6, None, all_to_all),
)


def draw(setting: Setting, checks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """History (checks, runs, launches) and the new run's launches (checks, 6), unchanged code at 1."""
    chance = np.random.default_rng(seed)
    history = 1 + chance.normal(0, setting.run, (checks, setting.runs, 1))
    history = history + chance.normal(0, setting.launch, (checks, setting.runs, setting.launches))
    new = 1 + chance.normal(0, setting.run, (checks, 1)) + chance.normal(0, setting.launch, (checks, BUDGET + CONFIRM))
    return history, new


def smallest(found: Callable[[float], float]) -> float | None:
    """The smallest change called `SEEN` of the time, by bisection to 0.02 %; None where even `HIGHEST` is not."""
    if found(HIGHEST) < SEEN:
        return None
    low, high = 0.0, HIGHEST
    while high - low > 2e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= SEEN else (middle, high)
    return high


def ours(setting: Setting, checks: int, seed: int) -> tuple[float, float | None]:
    """(false alarms, smallest change seen) of the shipped rule, with its confirmation."""
    chance = np.random.default_rng(seed)
    drawn = [
        (stick_of(setting, chance), 1 + chance.normal(0, setting.run) + chance.normal(0, setting.launch, 6))
        for _ in range(checks)
    ]

    def found(change: float, of: int) -> float:
        return statistics.fmean(check(stick, (new - change).tolist(), setting.early)[1] for stick, new in drawn[:of])

    return found(0.0, checks), smallest(lambda change: found(change, 3000))


def simulated(setting: Setting, checks: int, seed: int) -> None:
    false, seen = ours(setting, checks, seed)
    target = max(false, LEAST_FALSE)
    show(setting.name, "pytest-charllm", as_shipped=(false, seen), equal=(false, seen))
    history, new = draw(setting, checks, seed + 1)
    for peer in PEERS:
        launches = new[:, : peer.new_launches]
        unchanged = peer.loss(history, launches)

        def at(limit: float, peer: Peer = peer, launches: np.ndarray = launches) -> float | None:
            return smallest(lambda change: float((peer.loss(history, launches - change) > limit).mean()))

        limit = float(np.quantile(unchanged, 1 - target))
        shipped = None if peer.limit is None else (float((unchanged > peer.limit).mean()), at(peer.limit))
        show(setting.name, peer.name, as_shipped=shipped, equal=(float((unchanged > limit).mean()), at(limit)))


def recorded(path: Path) -> None:
    """Peers that judge the steps of two launches, and ours, on real launches of one card."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps = {row["tag"]: np.array(row["step_ms"]) for row in rows}
    unchanged = [row["tag"] for row in rows if row["inject"] == UNCHANGED]
    lines = {str(line["tag"]): line for line in judge_recorded.judged(judge_recorded.read(path))}
    changes = {tag: float(str(line["change"])) for tag, line in lines.items()}
    red = {tag for tag, line in lines.items() if line["verdict"] == "REGRESSION"}
    show_recorded(path.name, "pytest-charllm", red, red, unchanged, changes)
    for name, limit, loss in (
        ("mean step, 5 % (ReFrame, Megatron-LM)", 0.05, lambda new, old: new.mean() / pooled_median(old, np.mean) - 1),
        ("min:5% of steps (pytest-benchmark)", 0.05, lambda new, old: new.min() / pooled_median(old, np.min) - 1),
        ("factor 1.1 and Mann-Whitney over steps (asv)", 0.10, factor_of_steps),
        ("Mann-Whitney over steps alone, p < 0.002", 3.09, z_of_steps),
        ("Student t over launches, p < 0.001 (Otava)", 4.5, t_of_launches),
    ):
        value = {
            tag: float(loss(new, [steps[other] for other in unchanged if other != tag])) for tag, new in steps.items()
        }
        spared = max(value[tag] for tag in unchanged)
        shipped, equal = ({tag for tag in steps if value[tag] > limit}, {tag for tag in steps if value[tag] > spared})
        show_recorded(path.name, name, shipped, equal, unchanged, changes)


def pooled_median(old: Sequence[np.ndarray], reduce: Callable[[np.ndarray], np.floating]) -> float:
    return float(np.median([reduce(launch) for launch in old]))


def z_of_steps(new: np.ndarray, old: Sequence[np.ndarray]) -> float:
    """Mann-Whitney's z of all steps, taken as independent, which they are not."""
    both = np.concatenate(old)
    wins, m, n = (new[:, None] > both[None, :]).sum(), len(new), len(both)
    return float((wins - m * n / 2) / math.sqrt(m * n * (m + n + 1) / 12))


def factor_of_steps(new: np.ndarray, old: Sequence[np.ndarray]) -> float:
    return float(np.median(new) / np.median(np.concatenate(old)) - 1) if z_of_steps(new, old) > 3.09 else 0.0


def t_of_launches(new: np.ndarray, old: Sequence[np.ndarray]) -> float:
    medians = np.array([np.median(launch) for launch in old])
    return float((np.median(new) - medians.mean()) / (medians.std() * math.sqrt(1 + 1 / len(medians))))


def show(series: str, rule: str, **limits: tuple[float, float | None] | None) -> None:
    line: dict[str, object] = {"series": series, "rule": rule}
    for name, figures in limits.items():
        if figures is not None:
            line[f"false_{name}"] = round(figures[0], 5)
            line[f"seen_percent_{name}"] = None if figures[1] is None else round(100 * figures[1], 2)
    print(json.dumps(line), flush=True)


def show_recorded(
    series: str, rule: str, shipped: set[str], equal: set[str], unchanged: Sequence[str], changes: dict[str, float]
) -> None:
    def least(called: set[str]) -> float | None:
        return min((100 * changes[tag] for tag in called if tag not in unchanged), default=None)

    figures = {
        f"{what}_{name}": value
        for name, called in (("as_shipped", shipped), ("equal", equal))
        for what, value in (("false", len(called & set(unchanged))), ("least_percent", least(called)))
    }
    line = {"series": series, "rule": rule, "unchanged": len(unchanged)} | figures
    print(json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in line.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parents[1]
    parser.add_argument("--file", type=Path, default=here / "tests" / "data" / "h200_launches.jsonl")
    parser.add_argument("--checks", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for setting in SETTINGS:
        if setting.runs == 20 and setting.early and not setting.name.startswith("the same"):
            simulated(setting, arguments.checks, arguments.seed)
    recorded(arguments.file)


if __name__ == "__main__":
    main()
