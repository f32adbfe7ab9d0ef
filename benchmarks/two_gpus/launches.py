"""Launches of a rank program: many scenarios in the same processes, of which one that fails costs only itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import msgspec

from pytest_charllm.launch.process import end_tree
from pytest_charllm.measure.traced import traced_values
from pytest_charllm.records import Launch, Pass, RankReport, Status, tier
from pytest_charllm.scenario.key import parse_key

RANKS = Path(__file__).with_name("ranks.py")
START_S = 90.0
"""To import torch and to meet, before the first case's own limit."""
OTHER_RANK_S = 3.0
"""After one rank has failed the other gets this long to say why it would as well."""
MOST_FAILURES = 4
"""Of one launch; what still fails then fails for a reason that all of it shares."""
_TAIL = 1500
"""Characters of a failed rank's output that are kept."""


@dataclass
class Outcome:
    """One scenario: every rank's report, or why there is none. `output`: the end of what a failed rank printed;
    `counted`: what the rank program counts, on rank 0."""

    seconds: float | None = None
    reports: tuple[RankReport, ...] = ()
    counted: int = 0
    error: str = ""
    output: str = ""


def traced_parts_s(key: str, outcome: Outcome) -> dict[str, float | None]:
    """Of a case that has reports: seconds of each part of a traced step, and as "step" of one without the profiler,
    means over ranks; None without a trace."""
    launch = Launch(
        id=key, scenario=parse_key(key), pass_=Pass.TRACED, window=tier("smoke", False).window,
        status=Status.COMPLETED, ranks=outcome.reports,
    )  # fmt: skip
    steps_s = [report.untraced_step_s for report in outcome.reports if report.untraced_step_s is not None]
    parts = {metric: value.value for metric, value in traced_values(launch).items()}
    return parts | {"step": fmean(steps_s) if steps_s else None}


@dataclass(frozen=True)
class Cases:
    """What is trained in the same processes. `device`: the one GPU that they see, by UUID; None: all of them.
    `program`: what each rank runs."""

    keys: tuple[str, ...]
    world: int
    case_limit_s: float
    root: Path
    device: str | None = None
    program: Path = RANKS


@dataclass
class Started:
    cases: Cases
    folder: Path
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def end(self) -> None:
        for process in self.ranks:
            end_tree(process, [process.pid], term_wait_s=0)

    def output(self, rank: int) -> str:
        return (self.folder / f"output.{rank}").read_text(errors="replace")


def start(cases: Cases) -> Started:
    """One process a rank. Whoever calls it calls `finish` or `Started.end`."""
    cases.root.mkdir(parents=True, exist_ok=True)
    folder = cases.root / f"try{len(list(cases.root.glob('try*')))}"
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases.keys))
    started = Started(cases, folder)
    environment = _environment(cases)
    for rank in range(cases.world):
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"output.{rank}").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(cases.program), str(folder), str(cases.case_limit_s)],
                env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        started.ranks.append(process)
    return started


def finish(started: Started, until_s: float) -> dict[str, Outcome]:
    """The outcome of every case; after one that fails the rest is started again. `until_s` on the monotonic clock."""
    found: dict[str, Outcome] = {}
    failures = 0
    while True:
        keys = started.cases.keys
        try:
            why = _wait(started, until_s)
        finally:
            started.end()
        done = _collect(started)
        found |= done
        if len(done) == len(keys):
            return found
        culprit, *rest = keys[len(done) :]
        found[culprit] = _failed(started, len(done), why)
        failures += 1
        if not rest:
            return found
        if failures == MOST_FAILURES or time.monotonic() > until_s:
            reason = f"not run: {failures} before it failed" if failures == MOST_FAILURES else "not run: out of time"
            return found | {key: Outcome(error=reason) for key in rest}
        started = start(replace(started.cases, keys=tuple(rest)))


def _environment(cases: Cases) -> dict[str, str]:
    """As the product's own launches have it where that changes what happens; NCCL's variables stay the site's."""
    environment: dict[str, str] = {
        "OMP_NUM_THREADS": "4",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        **os.environ,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(cases.world),
        "TORCHINDUCTOR_CACHE_DIR": str(cases.root / "inductor"),
        "TRITON_CACHE_DIR": str(cases.root / "triton"),
    }
    if cases.device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = cases.device
    return environment


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port: int = listening.getsockname()[1]
        return port


def _wait(started: Started, until_s: float) -> str:
    """Until all ranks have ended, one has failed, or it takes too long; says which."""
    cases = started.cases
    limit_s = min(until_s, time.monotonic() + START_S + cases.case_limit_s * len(cases.keys))
    while any(process.poll() is None for process in started.ranks):
        failed = {rank: process.poll() for rank, process in enumerate(started.ranks) if process.poll()}
        if failed:
            for process in started.ranks:
                patient_until_s = time.monotonic() + OTHER_RANK_S
                while process.poll() is None and time.monotonic() < patient_until_s:
                    time.sleep(0.05)
            return ", ".join(f"rank {rank} exited with {code}" for rank, code in failed.items())
        if time.monotonic() > limit_s:
            return "its time was up"
        time.sleep(0.05)
    return ", ".join(f"rank {rank} exited with {process.returncode}" for rank, process in enumerate(started.ranks))


def _collect(started: Started) -> dict[str, Outcome]:
    """Of the cases that every rank has finished, in their order, up to the first that one has not."""
    found: dict[str, Outcome] = {}
    for number, key in enumerate(started.cases.keys):
        paths = [started.folder / f"{number}.{rank}.json" for rank in range(started.cases.world)]
        if not all(path.exists() for path in paths):
            break
        answers = [json.loads(path.read_text()) for path in paths]
        found[key] = Outcome(
            seconds=max(answer["seconds"] for answer in answers),
            reports=tuple(msgspec.convert(answer["report"], RankReport) for answer in answers),
            counted=answers[0]["counted"],
        )
    return found


def _failed(started: Started, number: int, why: str) -> Outcome:
    """By what the ranks wrote themselves, else by how they ended and the last that they printed."""
    said: Mapping[int, str] = {
        rank: path.read_text()
        for rank in range(started.cases.world)
        if (path := started.folder / f"{number}.{rank}.error").exists()
    }
    worst = min(said, default=next((rank for rank, each in enumerate(started.ranks) if each.returncode == 1), 0))
    output = started.output(worst)
    if "Timeout (" in output and not said:
        # Stacks come with the innermost call first.
        why, output = f"no end within {started.cases.case_limit_s:g} s", output[output.index("Timeout (") :][:_TAIL]
    told = "; ".join(f"rank {rank}: {text}" for rank, text in said.items())
    return Outcome(error=told or why, output=output[-_TAIL:])


class Lines:
    """Prints each line, and appends it to a file."""

    def __init__(self, path: Path | None) -> None:
        self._path, self.failed = path, 0

    def __call__(self, told: dict[str, object]) -> None:
        self.failed += told.get("ok") is False
        text = json.dumps(told)
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a") as out:
                out.write(text + "\n")
