"""What the sampler costs a training step, told inside one launch: it is halted and let go on in turn, block by block.

    python benchmarks/sampler_cost.py [--scenario llama3-1b.4L.mb2] [--seconds 80] [--block 1.0] [--out FOLDER]

The launch is the product's own, with its own sampler process; SIGSTOP halts that process between two blocks, SIGCONT
lets it go on. A halted sampler makes no call into the driver and takes no CPU time, while what it has open stays open:
so the difference is that of sampling, and the start of a sampler is in neither half. A step is timed by CUDA events,
which nothing waits for; their sum is laid between the two edges of the window, which are on the toggler's clock.

Blocks come in fours, on-off-off-on or off-on-on-off by the throw of a coin, so that a drift of the board cancels within
each. A step is off where the sampler was halted all the while. What it does first when it goes on, a pass over all that
is slow to read, is thereby in "on", at the price of some 4 % of the difference: such steps are on only in part. A block
lasts a second and 20 steps at least, since a board at its power cap swings with a period of about a second. The
interval is a bootstrap over the fours. Exit code 1: it is not within +-0.25 %.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec import structs

from pytest_charllm.devices.find import find_machine
from pytest_charllm.devices.open import source_of
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.names import TELEMETRY
from pytest_charllm.launch.request import LaunchRequest, Progress
from pytest_charllm.records import Launch, Pass, Status, Trace, tier
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import tokens_per_step
from pytest_charllm.telemetry.reader import read_trace

ALLOWED = 0.0025
FEWEST_STEPS = 20
RESAMPLES = 10_000
_STARTS_LATE_S = 0.5
"""The toggler learns of the window before the ranks have collected garbage for it."""


class Block(NamedTuple):
    """`cpu_s`: CPU time of the sampler so far, at the beginning of the block."""

    begin_ns: int
    end_ns: int
    on: bool
    cpu_s: float


class Toggler(threading.Thread):
    """Halts a process and lets it go on until told to end; then it is left running, whatever happened."""

    def __init__(self, pid: int, block_s: float, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self._process, self._block_s, self._random = psutil.Process(pid), block_s, random.Random(seed)
        self._over = threading.Event()
        self._begun: list[tuple[int, bool, float]] = []

    def run(self) -> None:
        try:
            self._over.wait(_STARTS_LATE_S)
            while not self._over.is_set():
                first = self._random.random() < 0.5
                for on in (first, not first, not first, first):
                    self._process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
                    times = self._process.cpu_times()
                    self._begun.append((time.monotonic_ns(), on, times.user + times.system))
                    if self._over.wait(self._block_s):
                        break
        except psutil.Error as error:
            print(f"toggling ended: {error}", file=sys.stderr)
        finally:
            if self._process.is_running():
                self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._over.set()
        self.join(timeout=5)

    def blocks(self) -> list[Block]:
        """Those that lasted their full length, in order."""
        ends_ns = [begin_ns for begin_ns, _, _ in self._begun[1:]]
        return [
            Block(begin_ns, end_ns, on, cpu_s)
            for (begin_ns, on, cpu_s), end_ns in zip(self._begun, ends_ns, strict=False)
        ]


def by_block(begin_ns: int, end_ns: int, step_s: Sequence[float], blocks: Sequence[Block]) -> list[list[float]]:
    """The steps of each block. A step over an edge goes to the block with the sampler on, where only one of both has.

    The steps are laid end to end into the window, stretched by what little of it lies between them.
    """
    found: list[list[float]] = [[] for _ in blocks]
    starts_ns = [block.begin_ns for block in blocks]
    stretch = (end_ns - begin_ns) / sum(step_s)
    edges_ns = [begin_ns + stretch * total_s for total_s in accumulate(step_s, initial=0.0)]
    for one_s, (from_ns, to_ns) in zip(step_s, pairwise(edges_ns), strict=True):
        first, last = bisect_right(starts_ns, from_ns) - 1, bisect_right(starts_ns, to_ns) - 1
        if first >= 0 and to_ns <= blocks[-1].end_ns:
            found[last if blocks[last].on and not blocks[first].on else first].append(one_s)
    return found


def differences(blocks: Sequence[Block], steps: Sequence[Sequence[float]]) -> list[float]:
    """Mean step with the sampler over that without, less one, of each four blocks that all have steps."""
    found = []
    for first in range(0, len(blocks) - 3, 4):
        four = range(first, first + 4)
        if all(steps[index] for index in four):
            on, off = (
                statistics.fmean(s for i in four if blocks[i].on is on for s in steps[i]) for on in (True, False)
            )
            found.append(on / off - 1)
    return found


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean by resampling the values, of which more than three are needed.

    Resampling n values underrates their spread; sqrt(n / (n - 3)), the spread of Student's t, makes up for it.
    """
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    mean, wider = statistics.fmean(values), math.sqrt(len(values) / (len(values) - 3))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    return mean + wider * (low - mean), mean + wider * (high - mean)


def passes_on(trace: Trace, blocks: Sequence[Block]) -> tuple[float, float]:
    """Passes over a device, and reads of its energy counter among them, per second that the sampler was on."""
    on_s = sum(block.end_ns - block.begin_ns for block in blocks if block.on) / 1e9
    seen = [
        sample
        for samples in trace.samples.values()
        for sample in samples
        if any(block.on and block.begin_ns <= sample.mono_ns < block.end_ns for block in blocks)
    ]
    return len(seen) / on_s, sum("energy_j" in sample.values for sample in seen) / on_s


def toggled(request: LaunchRequest, block_s: float) -> tuple[Launch, list[Block]]:
    """Launch it, toggling its sampler from the beginning of the window to its end."""
    togglers: list[Toggler] = []

    def watch(progress: Progress) -> None:
        if progress.phase == "window" and not togglers and progress.tokens_per_s:
            step_s = tokens_per_step(request.scenario) / progress.tokens_per_s
            with open(request.directory / TELEMETRY, "rb") as file:
                pid = json.loads(file.readline())["pid"]
            togglers.append(Toggler(pid, max(block_s, FEWEST_STEPS * step_s)))
            togglers[0].start()
        elif progress.phase != "window":
            for toggler in togglers:
                toggler.end()

    try:
        launch = TorchrunLauncher().run(request, watch)
    finally:
        for toggler in togglers:
            toggler.end()
    return launch, togglers[0].blocks() if togglers else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="llama3-1b.4L.mb2")
    parser.add_argument("--seconds", type=float, default=80.0, help="length of the window")
    parser.add_argument("--block", type=float, default=1.0, metavar="S", help="shortest block")
    parser.add_argument("--source", help="telemetry source; default: the machine's own")
    parser.add_argument("--out", type=Path, help="keep the figures, steps, blocks and trace in this folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a halted sampler is never left behind
    machine, scenario = find_machine(), parse_key(options.scenario)
    window = structs.replace(tier("nightly", machine.is_cpu).window, tier="long", min_seconds=options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "launch")
        directory.mkdir()
        request = LaunchRequest(
            id="sampler-cost",
            scenario=scenario,
            pass_=Pass.TIMED,
            window=window,
            machine=machine,
            device_uuids=tuple(device.uuid for device in machine.devices[: scenario.layout.world]),
            directory=directory,
            cache_dir=Path(folder, "cache"),
            source=options.source or source_of(machine),
        )
        launch, blocks = toggled(request, options.block)
        if launch.status is not Status.COMPLETED:
            detail = "" if launch.failure is None else launch.failure.detail or launch.failure.log_tail
            sys.exit(f"{scenario.key} failed: {launch.first_cause}\n{detail}")
        trace = read_trace(directory / TELEMETRY)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            shutil.copy(directory / TELEMETRY, options.out / "sampler_cost.telemetry.jsonl")
    if options.out:  # before the figures: what they are made of cannot be had again
        report = launch.ranks[0]
        assert report.window is not None
        assert report.steps is not None
        kept = {
            "window_ns": [report.window.begin_mono_ns, report.window.end_mono_ns],
            "step_s": report.steps.wall_s,
            "blocks": blocks,
        }
        (options.out / "sampler_cost.json").write_text(json.dumps(kept))
    figures = result(launch, trace, blocks)
    print(json.dumps(figures), flush=True)
    if options.out:
        (options.out / "sampler_cost.figures.json").write_text(json.dumps(figures) + "\n")
    return 0 if figures["ok"] else 1


def result(launch: Launch, trace: Trace, blocks: list[Block]) -> dict[str, object]:
    """Raises `SystemExit` where there are too few blocks to tell anything from."""
    report = launch.ranks[0]
    assert report.window is not None
    assert report.steps is not None
    blocks = blocks[: len(blocks) // 4 * 4]
    if not blocks:
        sys.exit("no four blocks in the window: make it longer")
    step_s = report.steps.wall_s
    steps = by_block(report.window.begin_mono_ns, report.window.end_mono_ns, step_s, blocks)
    found = differences(blocks, steps)
    if len(found) <= 3:
        sys.exit(f"{len(found)} fours of blocks in the window, 4 needed: make it longer")
    low, high = interval(found)
    on_s = sum(block.end_ns - block.begin_ns for block in blocks if block.on) / 1e9
    cpu_s = sum(after.cpu_s - block.cpu_s for block, after in pairwise(blocks) if block.on)
    passes_per_s, energy_reads_per_s = passes_on(trace, blocks)
    return {
        "scenario": launch.scenario.key,
        "device": report.device.uuid or report.device.name,
        "driver": trace.meta.driver,
        "steps": len(step_s),
        "step_ms": 1e3 * statistics.fmean(step_s),
        "step_cov_percent": 100 * statistics.pstdev(step_s) / statistics.fmean(step_s),
        "share_of_window_in_steps": sum(step_s) * 1e9 / (report.window.end_mono_ns - report.window.begin_mono_ns),
        "blocks": len(blocks),
        "fewest_steps_of_a_block": min(map(len, steps)),
        "fours": len(found),
        "difference_percent": 100 * statistics.fmean(found),
        "median_difference_percent": 100 * statistics.median(found),
        "interval_percent": [100 * low, 100 * high],
        "allowed_percent": 100 * ALLOWED,
        "ok": -ALLOWED < low <= high < ALLOWED,
        "passes_per_s_on": passes_per_s,
        "energy_reads_per_s_on": energy_reads_per_s,
        "sampler_cpu_percent_on": 100 * cpu_s / on_s,
        "sampler_cpu_s_of_launch": None if trace.end is None else trace.end.cpu_s,
        "notes": launch.notes,
    }


if __name__ == "__main__":
    sys.exit(main())
