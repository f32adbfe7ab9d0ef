"""A stopwatch, an energy meter and a CPU meter outside of what they watch. Knows nothing of pytest-charllm.

    python stopwatch.py SOCKET FILE [GPU-UUID]

Stamps each message on SOCKET when it comes in, and reads every 0.25 s the CPU time of the process of the same parent
that has "pytest_charllm.telemetry" on its command line. A `sync` message has the board's energy counter read through
NVML, at once and every 50 ms for 0.2 s: a read keeps the driver busy for 4 ms, for which the sampler's would wait. A
line on stdin ends that. FILE gets a JSON line for each, flushed. Ends when stdin does. The clock is
CLOCK_MONOTONIC_RAW: no other clock here disciplines it.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

METER_S, READS, CPU_S = 0.05, 5, 0.25
SAMPLER = "pytest_charllm.telemetry"


def now_s():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) / 1e9


class Notes:
    def __init__(self, path):
        self._file, self._lock = open(path, "w"), threading.Lock()  # noqa: SIM115 - open as long as the process

    def add(self, kind, at_s, **what):
        with self._lock:
            print(json.dumps({"kind": kind, "at_s": at_s, **what}), file=self._file, flush=True)


def watch_laps(path, notes, synced):
    laps = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    laps.bind(path)
    print("ready", flush=True)
    while True:
        said = laps.recv(64)
        at_s = now_s()
        kind, number = said.decode().split()
        if kind == "sync":
            synced.set()
        notes.add(kind, at_s, number=int(number))


def meter_energy(uuid, notes, synced, enough):
    try:
        import pynvml

        pynvml.nvmlInit()
        board = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        while synced.wait() and not enough.is_set():
            synced.clear()
            for _ in range(READS):
                before_s = now_s()
                energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(board)
                notes.add("energy", (before_s + now_s()) / 2, energy_j=energy_mj / 1e3)
                if synced.wait(METER_S):
                    break
    except Exception as error:
        notes.add("no-energy", now_s(), reason=f"{type(error).__name__}: {error}")


def meter_sampler(notes):
    while True:
        for process in psutil.Process(os.getppid()).children():
            with suppress(psutil.Error):  # it may end meanwhile
                if SAMPLER in process.cmdline():
                    at_s, times = now_s(), process.cpu_times()
                    notes.add("sampler", at_s, pid=process.pid, cpu_s=times.user + times.system)
        time.sleep(CPU_S)


def main():
    path, file, *uuids = sys.argv[1:]
    notes, synced, enough = Notes(file), threading.Event(), threading.Event()
    meters = [(meter_energy, (uuid, notes, synced, enough)) for uuid in uuids[:1]]
    tasks: list[tuple[Callable[..., None], tuple]] = [
        (watch_laps, (path, notes, synced)),
        (meter_sampler, (notes,)),
        *meters,
    ]
    for task, arguments in tasks:
        threading.Thread(target=task, args=arguments, daemon=True).start()
    sys.stdin.readline()
    enough.set()
    sys.stdin.read()


if __name__ == "__main__":
    main()
