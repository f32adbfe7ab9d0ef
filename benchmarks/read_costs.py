"""What starting a telemetry source costs, and each of its reads, in wall and in CPU time.

    python benchmarks/read_costs.py [--source nvml] [--times 20] [--uuid GPU-...]

Prints a JSON line each: first of an interpreter by itself, without `site`, and with the sampler's imports; then of the
imports here, of opening the source (library started, boards probed) and of a snapshot, both by call of NVML too (what
one call makes inside of another counts for both), of each quantity read alone, of the fast tier, of it with energy
(around edges), of all together with links and without, of the driver's ring of power and of the look at who computes
there. Reads are 50 ms apart, so that none finds the answer of the one before. CPU time is of the whole process, in ms;
a median, and the mean, since some reads now and then wait their turn.
"""

from __future__ import annotations

import time

_BEGAN_NS, _BEGAN_CPU_NS = time.perf_counter_ns(), time.process_time_ns()

import argparse  # noqa: E402 - what these imports cost is the first of the figures
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from inspect import isfunction  # noqa: E402
from typing import Any  # noqa: E402

import pynvml  # noqa: E402

from pytest_charllm.devices.open import open_source  # noqa: E402
from pytest_charllm.devices.process import search_environment  # noqa: E402
from pytest_charllm.telemetry import sampler  # noqa: E402, F401 - the process whose costs these are

APART_S = 0.05
LINKS = {"link_tx_kib", "link_rx_kib"}
STARTS = {
    "interpreter": ("-c", "pass"),
    "interpreter without site": ("-S", "-c", "pass"),
    "sampler's imports, without site": ("-S", "-c", "import gc; gc.disable(); import pytest_charllm.telemetry.sampler"),
    "sampler's imports and NVML's, without site": (
        "-S", "-c",
        "import gc; gc.disable(); import pytest_charllm.telemetry.sampler, pytest_charllm.devices.nvml, pynvml",
    ),
}  # fmt: skip


def told(what: str, wall_ns: list[int], cpu_ns: list[int]) -> None:
    figures = {"what": what, "times": len(wall_ns)}
    for name, each in (("wall", wall_ns), ("cpu", cpu_ns)):
        figures[f"{name}_p50_ms"] = statistics.median(each) / 1e6
        figures[f"{name}_mean_ms"] = statistics.mean(each) / 1e6
    print(json.dumps(figures), flush=True)


@contextmanager
def by_call(within: str) -> Iterator[None]:
    """Of what is done in here, the calls of NVML that took over a tenth of a millisecond of CPU time altogether."""
    spent: dict[str, list[int]] = {}
    known = {name: each for name, each in vars(pynvml).items() if name.startswith("nvml") and isfunction(each)}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            fields = name == "nvmlDeviceGetFieldValues"
            began_ns = time.process_time_ns()
            try:
                return known[name](*args, **named)
            finally:
                what = f"{name} {[field for field, _ in args[1]]}" if fields else name
                spent.setdefault(what, []).append(time.process_time_ns() - began_ns)

        return call

    for name in known:
        setattr(pynvml, name, timed(name))
    try:
        yield
    finally:
        for name, each in known.items():
            setattr(pynvml, name, each)
    calls = {what: [len(each), sum(each) / 1e6] for what, each in spent.items() if sum(each) > 1e5}
    ordered = dict(sorted(calls.items(), key=lambda item: -item[1][1]))
    print(json.dumps({"what": f"calls of {within}", "count_and_cpu_ms": ordered}), flush=True)


def cost(what: str, read: Callable[[], object], times: int) -> None:
    wall_ns, cpu_ns = [], []
    for _ in range(times):
        begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        read()
        cpu_ns.append(time.process_time_ns() - begin_cpu_ns)
        wall_ns.append(time.perf_counter_ns() - begin_ns)
        time.sleep(APART_S)
    told(what, wall_ns, cpu_ns)


def starts(times: int) -> None:
    """CPU time of children, that of the interpreter included."""
    environ = search_environment()
    for what, arguments in STARTS.items():
        wall_ns, cpu_ns = [], []
        for _ in range(times):
            began_ns = time.perf_counter_ns()
            pid = os.posix_spawn(sys.executable, (sys.executable, *arguments), environ)
            _, _, used = os.wait4(pid, 0)
            wall_ns.append(time.perf_counter_ns() - began_ns)
            cpu_ns.append(round((used.ru_utime + used.ru_stime) * 1e9))
        told(what, wall_ns, cpu_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="nvml")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--uuid", action="append", default=[], help="only these devices; default: all")
    options = parser.parse_args()
    starts(options.times)
    told("interpreter before", [0], [_BEGAN_CPU_NS])
    told("imports", [time.perf_counter_ns() - _BEGAN_NS], [time.process_time_ns() - _BEGAN_CPU_NS])
    begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    with by_call("open"):
        source = open_source(options.source, tuple(options.uuid))
    told("open", [time.perf_counter_ns() - begin_ns], [time.process_time_ns() - begin_cpu_ns])
    device = source.devices()[0]
    every = {quantity for quantity, answer in device.capabilities.items() if answer == "ok"}
    fast = every - set(device.slow)
    with by_call("snapshot"):
        cost("snapshot", lambda: source.snapshot(device.uuid, "start"), 1)
    for quantity in sorted(every):
        cost(quantity, lambda one=quantity: source.read(device.uuid, {one}), options.times)  # type: ignore[misc]
    cost("fast tier", lambda: source.read(device.uuid, fast), options.times)
    cost("fast tier and energy", lambda: source.read(device.uuid, fast | (every & {"energy_j"})), options.times)
    cost("all but links", lambda: source.read(device.uuid, every - LINKS), options.times)
    cost("all", lambda: source.read(device.uuid, every), options.times)
    cost("power ring", lambda: source.power_ring(device.uuid), options.times)
    cost("processes", lambda: source.processes(device.uuid), options.times)


if __name__ == "__main__":
    main()
