"""How often the sensors of a GPU change, and how far they run behind its load, from a square wave of matmuls.

    python benchmarks/sensor_lag.py --out FOLDER [--seconds 120] [--period 0.04]
    python benchmarks/sensor_lag.py --again FOLDER

bf16 products of random matrices go on and off, long halves first, none a multiple of the other or of 0.1 s, so that the
edges fall on all phases of a refresh. Our sampler runs meanwhile as a process of its own, faster than in a launch and
with its slow counters at every pass; what it could not keep up with is in the trace. FOLDER gets `sensor_lag.json`, the
figures with the edges of the load, and the trace, packed; `--again` computes the figures from these two, and writes
nothing. `lag.py` says how. Prints a table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lag import Edge, estimates
from tabulate import tabulate

from pytest_charllm.devices.find import find_machine
from pytest_charllm.devices.open import source_of
from pytest_charllm.records import Trace
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.dense import Span
from pytest_charllm.telemetry.reader import read_trace

HALVES = ((5.037, 0.5), (2.013, 0.3), (1.007, 0.2))
"""Seconds on, then as many off; and the share of the time in which it goes like that."""
QUIET_S = 3.0
"""Before the first edge and after the last."""
LATEST_S = 4.0
"""Lags up to this are looked for."""
FIGURES, TRACE = "sensor_lag.json", "sensor_lag.telemetry.jsonl.gz"
WIDTH, CPU_WIDTH = 8192, 256
GROUP = 8


def halves(seconds: float) -> Iterator[float]:
    for half_s, share in HALVES:
        yield from [half_s] * max(1, round(seconds * share / (2 * half_s)))


def matmuls(is_cpu: bool) -> tuple[Callable[[float], int], float]:
    """What multiplies until a moment of `time.monotonic` and returns how often, the device idle again; FLOPs of one."""
    import torch

    device, width = ("cpu", CPU_WIDTH) if is_cpu else ("cuda", WIDTH)
    left, right = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)

    def until(end_s: float) -> int:
        count = 0
        before = None
        while time.monotonic() < end_s:
            for _ in range(GROUP):
                torch.mm(left, right, out=product)
            count += GROUP
            if not is_cpu:  # one group is queued behind the one that runs: never idle, never far ahead
                mark = torch.cuda.Event()
                mark.record()
                if before is not None:
                    before.synchronize()
                before = mark
        if not is_cpu:
            torch.cuda.synchronize()
        return count

    until(time.monotonic() + 0.2)
    return until, 2.0 * width**3


def wave(multiply_until: Callable[[float], int], seconds: float) -> tuple[list[Edge], list[float]]:
    """The edges as they came, and products a second of each half that was on."""
    edges, rates = [], []
    time.sleep(QUIET_S)
    for half_s in halves(seconds):
        begin_ns = time.monotonic_ns()
        count = multiply_until(begin_ns / 1e9 + half_s)
        end_ns = time.monotonic_ns()
        edges += [Edge(begin_ns, True), Edge(end_ns, False)]
        rates.append(count / ((end_ns - begin_ns) / 1e9))
        time.sleep(max(0.0, end_ns / 1e9 + half_s - time.monotonic()))
    time.sleep(QUIET_S)
    return edges, rates


def record(options: argparse.Namespace) -> tuple[Trace, dict[str, Any]]:
    machine = find_machine()
    source = options.source or source_of(machine)
    uuids = tuple(device.uuid for device in machine.devices[:1])
    if uuids:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuids[0]
    multiply_until, flops = matmuls(machine.is_cpu)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "telemetry.jsonl")
        with Sampler(path, source, uuids, options.period) as sampler:
            now_ns = time.monotonic_ns()
            sampler.announce(Span(now_ns, now_ns + round(1e9 * (2 * options.seconds + 60))))
            edges, rates = wave(multiply_until, options.seconds - 2 * QUIET_S)
        with open(path, "rb") as plain, gzip.open(options.out / TRACE, "wb") as packed:
            shutil.copyfileobj(plain, packed)
        trace = read_trace(path)
    return trace, {"edges": edges, "matmul_flop_per_s": flops * statistics.median(rates)}


def read_again(folder: Path) -> tuple[Trace, dict[str, Any]]:
    kept = json.loads((folder / FIGURES).read_text())
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "telemetry.jsonl")
        path.write_bytes(gzip.decompress((folder / TRACE).read_bytes()))
        trace = read_trace(path)
    edges = [Edge(*edge) for edge in kept["edges"]]
    return trace, {"edges": edges, "matmul_flop_per_s": kept["matmul_flop_per_s"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="FOLDER")
    where.add_argument("--again", type=Path, metavar="FOLDER", help="load nothing; compute from what is kept there")
    parser.add_argument("--seconds", type=float, default=120.0, help="of trace")
    parser.add_argument("--period", type=float, default=0.04, metavar="S", help="of the sampler")
    parser.add_argument("--source", help="telemetry source; default: the machine's own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = [name for name in (FIGURES, TRACE) if options.again and not (options.again / name).is_file()]
    if missing:
        parser.error(f"{options.again} has no {missing[0]}; --again takes a folder that --out filled")
    trace, recorded = read_again(options.again) if options.again else record(options)
    (device,) = trace.devices.values()
    pace = None if trace.end is None else trace.end.pace.get(device.uuid)
    figures = {
        "device": device.name,
        "uuid": device.uuid,
        "driver": trace.meta.driver,
        "source": trace.meta.source,
        "asked_period_s": trace.meta.period_s,
        "period_s": None if pace is None else pace.period_s,
        "events": [event.text for event in trace.events if event.kind not in ("anchor", "dense")],
        **recorded,
    }
    folder = options.again or options.out
    if options.out:
        (folder / FIGURES).write_text(json.dumps(figures))  # the edges first: they cannot be had again
    figures["sensors"] = estimates(trace, recorded["edges"], LATEST_S)
    if options.out:
        (folder / FIGURES).write_text(json.dumps(figures))
    print(table(figures))
    size = (folder / TRACE).stat().st_size
    print(f"{figures['matmul_flop_per_s'] / 1e12:.0f} TFLOP/s while on; trace {size / 1e3:.0f} kB, packed")
    return 0


def table(figures: dict[str, Any]) -> str:
    rows = []
    for quantity, told in figures["sensors"].items():
        why_not = [told[key] for key in ("reason", "refresh_reason", "lag_reason") if key in told]
        numbers = [told.get(key) for key in ("changes", "refresh_s", "regularity", "lag_s", "explained")]
        rows.append([quantity, *numbers, "; ".join(why_not)])
    headers = ["sensor", "changes", "refresh s", "regularity", "lag s", "explained", "why not"]
    return tabulate(rows, headers=headers, floatfmt=".3f")


if __name__ == "__main__":
    sys.exit(main())
