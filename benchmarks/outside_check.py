"""Nightly launches by the product, and what a stopwatch and a meter outside of it say of the same windows.

    python benchmarks/outside_check.py [--scenario llama3-1b.mb2] [--launches 2] [--matmul-seconds 4] [--out FOLDER]

They share one sampler, as those of a night do. `outside/stopwatch.py` is a process of its own with its own clock, its
own reads of the energy counter and its own look at the sampler. It cannot see steps from outside, so
`outside/sitecustomize.py` has the rank send it a message when a step has been queued and when a wait for the device is
over: the window is the longest run of steps between two such waits, and all of its steps are done by the second. Tokens
a step are those of the scenario. Of each launch are compared:

- the number of steps in the window;
- tokens/s (the product: from the median of CUDA event times) within 1 %;
- joules of the first launch (the product: counter, interpolated to the edges) within 3 % of the difference of the
  counter as read at the same two moments, which is 0.1 s coarse at either. Not of the others: driver calls wait for
  each other, and what waits takes CPU time;
- model FLOP/s at most the matmul rate of the launch's own calibration, and at most that of `--matmul-seconds` of bf16
  matmuls on random data right after the last, by which time a board is at its power cap;
- CPU time of the sampler process, under 1 % of a core. That of a night's first launch has its start, and is only shown.

Prints a JSON line a check; exit code 1 if one is not met. Where there is no GPU, a lone rank waits for nothing: only
the sampler's CPU time is told.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_charllm.campaign.runner import Runner
from pytest_charllm.campaign.settings import Evidence, Planned, Settings
from pytest_charllm.devices.find import find_machine
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.names import TELEMETRY
from pytest_charllm.records import Launch, Measurement, Pass, tier
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.flops import FLOP_FORMULA, flops_per_token
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import tokens_per_step
from pytest_charllm.store.run import RunDirectory
from pytest_charllm.telemetry.keeper import Keeper
from pytest_charllm.telemetry.reader import read_trace

OUTSIDE = Path(__file__).with_name("outside")
WIDTH = 8192
_READY_S = 30.0

Note = dict[str, Any]


class Window(NamedTuple):
    """`steps` optimizer steps were done between two moments of the stopwatch, in seconds."""

    begin_s: float
    end_s: float
    steps: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@contextmanager
def stopwatch(folder: Path, uuids: tuple[str, ...]) -> Iterator[tuple[Path, Callable[[], object]]]:
    """Runs one, and has what is launched meanwhile send its laps there. Yields the file that it writes, and what ends
    its reads of energy."""
    laps, notes = str(folder / "laps"), folder / "outside.jsonl"
    command = [sys.executable, str(OUTSIDE / "stopwatch.py"), laps, str(notes), *uuids]
    before = dict(os.environ)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                sys.exit("the stopwatch does not start")
            os.environ["LAPS_SOCKET"] = laps
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(OUTSIDE), before.get("PYTHONPATH"))))
            yield notes, partial(os.write, process.stdin.fileno(), b"enough\n")
        finally:
            os.environ.clear()
            os.environ.update(before)
            process.kill()


def longest(notes: list[Note]) -> Window | None:
    """The most steps between two successive waits. None where no two waits have a step between."""
    windows = []
    steps, began_s, began = 0, None, 0
    for note in notes:
        if note["kind"] == "step":
            steps = note["number"]
        elif note["kind"] == "sync":
            if began_s is not None and steps > began:
                windows.append(Window(began_s, note["at_s"], steps - began))
            began_s, began = note["at_s"], steps
    return max(windows, key=lambda window: window.steps, default=None)


def difference(notes: list[Note], kind: str, name: str, window: Window) -> float | None:
    """Of what was read nearest to either edge."""
    seen = [note for note in notes if note["kind"] == kind]
    if not seen:
        return None
    begin, end = (min(seen, key=lambda note: abs(note["at_s"] - at_s)) for at_s in (window.begin_s, window.end_s))
    return end[name] - begin[name]


def close(name: str, ours: float | None, outside: float | None, allowed: float, judged: bool) -> Note:
    gap = None if ours is None or not outside else ours / outside - 1
    met = gap is not None and abs(gap) <= allowed
    percent = {"apart_percent": None if gap is None else 100 * gap, "allowed_percent": 100 * allowed}
    return {"check": name, "ours": ours, "outside": outside, **percent, "ok": met if judged else None}


def matmul_flops(seconds: float, uuid: str) -> float:
    """Sustained FLOP/s of bf16 products of random matrices on this GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    import torch

    left, right = (torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    for _ in range(20):
        torch.mm(left, right, out=product)
    torch.cuda.synchronize()
    begin_s, count = time.perf_counter(), 0
    while time.perf_counter() < begin_s + seconds:
        for _ in range(50):
            torch.mm(left, right, out=product)
        torch.cuda.synchronize()
        count += 50
    return count * 2 * WIDTH**3 / (time.perf_counter() - begin_s)


class Seen(NamedTuple):
    """A launch, and what the stopwatch noted until its end: of this one, and before."""

    launch: Launch
    measurement: Measurement
    directory: Path
    notes: list[Note]
    before: list[Note]


def checks(seen: Seen, sustained: float | None) -> list[Note]:
    launch, measurement, notes = seen.launch, seen.measurement, seen.notes
    report, window = launch.ranks[0], longest(notes)
    assert report.steps is not None
    judged, sampler = report.device.kind == "cuda", cpu_of_sampler(notes, window, seen.before)
    steps = {"check": "steps in the window", "ours": len(report.steps.wall_s), "outside": window and window.steps}
    if window is None:
        reason = "the stopwatch saw no step between two waits"
        return [{**steps, "ok": False if judged else None, "reason": reason}, sampler]
    tokens = tokens_per_step(launch.scenario)
    values = {name: value.value for name, value in measurement.values.items()}
    tokens_per_s, j_per_token = values.get("throughput"), values.get("energy_per_token")
    joules = None if j_per_token is None else j_per_token * tokens * len(report.steps.wall_s)
    outside_j = difference(notes, "energy", "energy_j", window)
    achieved = None if tokens_per_s is None else tokens_per_s * flops_per_token(launch.scenario, FLOP_FORMULA)
    own = next((c for c in report.calibration if c.kind == "matmul"), None)
    rates = {
        "matmul FLOP/s of the launch's calibration": None if own is None else own.work / statistics.median(own.wall_s),
        "sustained matmul FLOP/s after the last launch": sustained,
    }
    return [
        {**steps, "seconds_outside": window.seconds, "ok": steps["ours"] == window.steps},
        close(
            "tokens/s per GPU", tokens_per_s, window.steps * tokens / window.seconds / len(launch.ranks), 0.01, judged
        ),
        close("joules of the window", joules, outside_j, 0.03, judged and not seen.before),
        *(
            {"check": f"model FLOP/s at most {name}", "ours": achieved, "outside": rate, "ok": met if judged else None}
            for name, rate in rates.items()
            for met in [achieved is not None and rate is not None and achieved <= rate]
        ),
        sampler,
    ]


def cpu_of_sampler(notes: list[Note], window: Window | None, before: list[Note]) -> Note:
    """Over a launch that lasts from the last note `before` to the last of all, and within its window alone."""
    seen, earlier = ([note for note in some if note["kind"] == "sampler"] for some in (notes, before))
    check = "sampler CPU, percent of a core"
    if not seen:
        return {"check": check, "ours": None, "ok": False, "reason": "the sampler was never seen"}
    kept = bool(earlier) and earlier[-1]["pid"] == seen[-1]["pid"]
    began = earlier[-1] if kept else {"at_s": seen[0]["at_s"], "cpu_s": 0.0}
    used_s, seconds = seen[-1]["cpu_s"] - began["cpu_s"], seen[-1]["at_s"] - began["at_s"]
    percent = 100 * used_s / seconds
    within_s = None if window is None else difference(seen, "sampler", "cpu_s", window)
    return {
        "check": check,
        "ours": percent,
        "with_start": not kept,
        "within_window": None if window is None or within_s is None else 100 * within_s / window.seconds,
        "cpu_s": used_s,
        "seconds": seconds,
        "allowed": 1.0,
        "ok": percent < 1.0 if kept else None,
    }


def pace(directory: Path) -> Note:
    """Where the sampler's time went: passes that read all, energy too, or only what is cheap, by what they took."""
    trace = read_trace(directory / TELEMETRY)
    samples = [sample for each in trace.samples.values() for sample in each]
    tiers: dict[str, list[float]] = {"all": [], "energy": [], "fast": []}
    for sample in samples:
        tier_name = "all" if "margin_c" in sample.values else "energy" if "energy_j" in sample.values else "fast"
        tiers[tier_name].append(sample.latency_ns / 1e6)
    return {
        "sampler": {
            name: {"passes": len(ms), "median_ms": statistics.median(ms), "sum_ms": sum(ms)}
            for name, ms in tiers.items()
            if ms
        },
        "cpu_s": None if trace.end is None else trace.end.cpu_s,
        "events": sorted({event.kind for event in trace.events}),
    }


def launched(
    settings: Settings, scenario: Scenario, launches: int, file: Path, meter_off: Callable[[], object]
) -> Iterator[Seen]:
    """One after the other. `file`: what the stopwatch writes. Exits where a launch fails."""
    run = RunDirectory.create(settings.root, machine=settings.machine, tier=settings.tier.name)
    evidence, before = Evidence(Planned(scenario)), list[Note]()
    with Keeper() as keeper:
        runner = Runner(settings, TorchrunLauncher(keeper), run)
        for _ in range(launches):
            measurement = runner(evidence, Pass.TIMED, of=launches)
            if measurement is None:
                failed = evidence.failed
                cause = evidence.invalid if failed is None else failed.first_cause
                failure = None if failed is None else failed.failure
                detail = "" if failure is None else failure.detail or failure.log_tail
                sys.exit(f"{scenario.key} failed: {cause}\n{detail}")
            notes = [json.loads(line) for line in file.read_text().splitlines()]
            launch = evidence.launches[-1]
            yield Seen(launch, measurement, evidence.directories[launch.id], notes[len(before) :], before)
            before = notes
            meter_off()


def lines(seen: Seen, driver: str | None, sustained: float | None) -> tuple[list[Note], bool]:
    """What is printed of a launch, and whether all its checks are met."""
    found = checks(seen, sustained)
    launch, measurement = seen.launch, seen.measurement
    head = {
        "scenario": launch.scenario.key,
        "device": launch.ranks[0].device.uuid,
        "driver": driver,
        "launch_s": launch.wall_s,
        "validity": measurement.validity,
        "reason": measurement.reason,
        "findings": [finding.text for finding in measurement.findings],
        "notes": [note["reason"] for note in seen.notes if note["kind"] == "no-energy"],
    }
    return [head, *found, pace(seen.directory)], all(check["ok"] is not False for check in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="llama3-1b.mb2")
    parser.add_argument("--launches", type=int, default=2)
    parser.add_argument("--matmul-seconds", type=float, default=4.0)
    parser.add_argument("--source", help="telemetry source; default: the machine's own")
    parser.add_argument("--out", type=Path, help="keep the checks, the stopwatch's notes and the traces in this folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = find_machine()
    scenario = parse_key(options.scenario)
    uuids = tuple(device.uuid for device in machine.devices[: scenario.layout.world])
    if len(uuids) > 1:
        parser.error(f"{scenario.key} runs on {len(uuids)} GPUs, the meter outside reads one")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = Settings(
            machine=machine,
            tier=tier("nightly", machine.is_cpu),
            root=root,
            shipped=root / "baselines",
            source=options.source,
        )
        with stopwatch(root, uuids) as (file, meter_off):
            seen = list(launched(settings, scenario, options.launches, file, meter_off))
        sustained = matmul_flops(options.matmul_seconds, uuids[0]) if uuids else None
        told = [lines(each, machine.driver, sustained) for each in seen]
        text = "".join(json.dumps(line) + "\n" for some, _ in told for line in some)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "outside_check.jsonl").write_text(text)
            shutil.copy(file, options.out / "outside.jsonl")
            for number, each in enumerate(seen, start=1):
                shutil.copy(each.directory / TELEMETRY, options.out / f"outside-{number}.telemetry.jsonl")
    print(text, end="", flush=True)
    return 0 if all(met for _, met in told) else 1


if __name__ == "__main__":
    sys.exit(main())
