"""Where a traced step goes on two GPUs, with overlap and without it in turn.

    python benchmarks/two_gpus/exposed.py [KEY ...] [--rounds 2] [--limit-s 300] [--out FILE]

KEY: scenarios of two ranks with overlap, `DEFAULT` if none. Each is trained with it and without, `--rounds` times in
turn, in the same processes, through the product's own traced pass. Prints one JSON line a case and at the end a table:
medians over rounds of means over ranks, in milliseconds, and which share of the communication computation hides. On a
machine without GPUs the same runs over gloo, without a trace, and there is no table. Exits 1 where a case failed, or
was not traced on GPUs: its line then has the ranks' notes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from launches import Cases, Lines, Outcome, finish, start, traced_parts_s
from msgspec.structs import replace
from tabulate import tabulate

from pytest_charllm.devices.find import find_machine
from pytest_charllm.errors import CharllmError
from pytest_charllm.scenario.key import parse_key

PROGRAM = Path(__file__).with_name("traced_ranks.py")
CASE_LIMIT_S = 60.0
DEFAULT = ("llama3-1b.4L.dp2.mb1.eager", "llama3-1b.4L.dp2+fsdp.mb1.eager", "llama3-1b.4L.tp2.mb1")
PARTS = ("compute_time", "communication_time", "exposed_communication", "host_gap")


def pair(key: str) -> tuple[str, str]:
    """The keys with overlap and without. Raises `ValueError` for a scenario that has none, or of another world."""
    scenario = parse_key(key)
    if not scenario.options.overlap or scenario.layout.world != 2:
        raise ValueError(f"{key}: give scenarios of two ranks with overlap, such as {DEFAULT[0]}")
    return scenario.key, replace(scenario, options=replace(scenario.options, overlap=False)).key


def milliseconds(case: str, outcome: Outcome) -> dict[str, float]:
    """`PARTS` and the step without the profiler, mean over ranks; nothing without a trace."""
    traced_s = traced_parts_s(case.split()[0], outcome)
    return {part: 1e3 * seconds for part in (*PARTS, "step") if (seconds := traced_s[part]) is not None}


def table(keys: Sequence[str], seen: dict[str, list[dict[str, float]]]) -> str:
    def rows() -> Iterator[list[str]]:
        for key in keys:
            rounds = [each for each in seen.get(key, ()) if len(each) > len(PARTS) and each["communication_time"]]
            if rounds:
                middle = {part: median(each[part] for each in rounds) for part in rounds[0]}
                hidden = 1 - middle["exposed_communication"] / middle["communication_time"]
                numbers = [f"{middle[part]:.1f}" for part in (*PARTS, "step")]
                yield [key, *numbers, f"{100 * hidden:.0f} %", str(len(rounds))]

    headers = ["scenario", "compute ms", "communication", "exposed", "host gap", "step", "hidden", "rounds"]
    return tabulate(rows(), headers=headers, disable_numparse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=2, help="of each with overlap and without it (default: 2)")
    parser.add_argument("--limit-s", type=float, default=300.0, help="all ends after it")
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    try:
        keys = [each for key in options.keys for each in pair(key)]
    except (CharllmError, ValueError) as wrong:
        parser.error(str(wrong))
    cases = tuple(f"{key} {turn}" for turn in range(max(1, options.rounds)) for key in keys)
    # So that `timeout` and Ctrl-C leave no rank behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tell, began_s, on_cpu = Lines(options.out), time.monotonic(), not find_machine().devices
    seen: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="exposed-") as folder:
        started = start(Cases(cases, 2, CASE_LIMIT_S, Path(folder), program=PROGRAM))
        for case, outcome in finish(started, began_s + options.limit_s).items():
            told: dict[str, object] = {"case": case, "seconds": outcome.seconds}
            if not outcome.reports:
                tell(told | {"ok": False, "error": outcome.error, "output": outcome.output})
                continue
            seen.setdefault(case.split()[0], []).append(parts := milliseconds(case, outcome))
            notes = sorted({note for report in outcome.reports for note in report.notes})
            tell(told | {"ok": bool(parts) or on_cpu, "notes": notes} | parts)
    tell({"wall_s": time.monotonic() - began_s})
    if any(each for rounds in seen.values() for each in rounds):
        print(table(keys, seen))
    return 1 if tell.failed else 0


if __name__ == "__main__":
    sys.exit(main())
