"""Found by the ranks through PYTHONPATH: gives them an engine that trains nothing, and fails on demand.

A fault of the request names what its rank does instead of answering; see `_BEHAVIOURS`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

if "RANK" in os.environ and "CHARLLM_REQUEST" in os.environ:
    from pytest_charllm import engines
    from pytest_charllm.records import Phases, RankDevice, RankReport, Stack

    def answer(request, rank, nonce=None):
        return RankReport(
            nonce=nonce or request.nonce,
            rank=rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            host="stub",
            pid=os.getpid(),
            pass_=request.pass_,
            device=RankDevice(kind="cpu", name="stub"),
            tokens_per_step=1,
            parameters=1,
            attention_backend="none",
            software=Stack(torch="stub"),
            phases=Phases(),
        )

    def sleep_for_ever():
        while True:
            time.sleep(3600)

    def wait_for_a_peer(request, rank):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not list(Path(request.out_dir).glob("*.error.json")):
            time.sleep(0.01)
        raise RuntimeError("[gloo] Connection reset by peer")

    def die(request, rank):
        os.kill(os.getpid(), signal.SIGKILL)

    def raise_error(request, rank):
        raise ValueError("shapes do not match")

    def ignore_sigterm(request, rank):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep_for_ever()

    def leave_a_child(request, rank):
        subprocess.Popen(["sleep", "600"])
        return answer(request, rank)

    def start_a_daemon(request, rank):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        sleep_for_ever()

    def linger(request, rank):
        os._exit = lambda code: sleep_for_ever()
        return answer(request, rank)

    _BEHAVIOURS = {
        "raise": raise_error,
        "wait": wait_for_a_peer,
        "die": die,
        "sleep": lambda request, rank: sleep_for_ever(),
        "stubborn": ignore_sigterm,
        "orphan": leave_a_child,
        "daemon": start_a_daemon,
        "leave": lambda request, rank: os._exit(0),
        "linger": linger,
        "foreign": lambda request, rank: answer(request, rank, nonce="of another launch"),
    }

    def run(request, progress):
        rank = int(os.environ["RANK"])
        progress("build")
        progress("window", step=0, expected_s=0.1, tokens_per_s=100.0)
        for fault in request.faults:
            if fault.rank in (None, rank):
                return _BEHAVIOURS[fault.name](request, rank)
        sys.stderr.write(f"rank {rank} of the stub engine\n")
        return answer(request, rank)

    engines.load = lambda name: run
