"""One sampler process for several recordings, and when it must not be used again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Trace
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.config import CLOSE, CLOSED, SamplerConfig, recorded_by, recording
from pytest_charllm.telemetry.keeper import Keeper
from pytest_charllm.telemetry.reader import read_trace

GPUS = ("GPU-a", "GPU-b")
Record = Callable[..., tuple[Trace, int]]


def gone(pid: int) -> bool:
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper() as kept:
        yield kept


@pytest.fixture
def record(tmp_path: Path, keeper: Keeper) -> Record:
    """A recording from start to end: its trace, and the process that made it."""
    count = iter(range(100))

    def made(source: str = "simulated:h200", uuids: tuple[str, ...] = GPUS) -> tuple[Trace, int]:
        with Sampler(tmp_path / f"{next(count)}.jsonl", source, uuids, keeper=keeper) as sampler:
            pid = sampler.pid
        assert pid is not None
        assert sampler.stop() == ()
        return read_trace(sampler.path), pid

    return made


def test_one_process_records_one_launch_after_the_other(record: Record) -> None:
    """Each trace is whole, and has only its own CPU time."""
    (first, pid), (second, again) = record(), record()
    assert pid == again
    for trace in (first, second):
        assert trace.meta is not None
        assert trace.end is not None
        assert (trace.meta.pid, trace.end.reason) == (pid, "told to")
        assert {(line.uuid, line.when) for line in trace.snapshots} == {(u, w) for u in GPUS for w in ("start", "end")}
        assert all(trace.samples[uuid] for uuid in GPUS)
    assert second.end is not None
    assert first.end is not None
    took = psutil.Process(pid).cpu_times()  # in hundredths
    assert 0 < first.end.cpu_s + second.end.cpu_s <= took.user + took.system + 0.05


def test_other_devices_take_another_process(record: Record) -> None:
    """A launch on half of a node must not be read by what reads all of it."""
    (_, both), (trace, one) = record(), record(uuids=("GPU-a",))
    assert both != one
    assert list(trace.samples) == ["GPU-a"]
    assert gone(both)


def test_one_that_died_meanwhile_is_replaced(record: Record) -> None:
    """Killed for memory between two launches: no fault of the second one."""
    _, pid = record()
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    trace, again = record()
    assert again != pid
    assert trace.end is not None


@pytest.mark.parametrize("fault", ["hang", "lost"])
def test_one_that_lost_a_device_is_not_used_again(tmp_path: Path, keeper: Keeper, record: Record, fault: str) -> None:
    """Its thread may sit in the driver for ever, or the library have to be opened anew."""
    source = f"simulated:h200+{fault}"
    with Sampler(tmp_path / "faulty.jsonl", source, GPUS, keeper=keeper) as sampler:
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:  # the fault comes after ten passes over GPU-a, and GPU-b goes on
            samples = read_trace(sampler.path).samples
            if len(samples["GPU-b"]) > len(samples["GPU-a"]) + 3:
                break
            time.sleep(0.05)
        pid = sampler.pid
    assert pid is not None
    assert sampler.stop() == ()
    assert record(source)[1] != pid
    assert gone(pid)


def test_the_end_of_the_run_ends_it(tmp_path: Path) -> None:
    """No process may stay behind."""
    with Keeper() as keeper:
        with Sampler(tmp_path / "one.jsonl", "simulated:h200", GPUS, keeper=keeper) as sampler:
            pid = sampler.pid
        assert pid is not None
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


PARENT = """
import os, sys
from pathlib import Path
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.keeper import Keeper
keeper = Keeper()
with Sampler(Path(sys.argv[1]), "simulated:h200", keeper=keeper) as sampler:
    pass
print(sampler.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_leaves_no_idle_sampler(tmp_path: Path) -> None:
    """SIGKILL of pytest between two launches."""
    command = (sys.executable, "-c", PARENT, str(tmp_path / "one.jsonl"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)


def test_a_trace_that_exists_is_told_and_costs_only_its_launch(record: Record, tmp_path: Path, keeper: Keeper) -> None:
    """The second recording cannot begin: the process is ended with a reason, and the next launch gets another."""
    _, pid = record()
    with pytest.raises(HarnessError, match=r"0\.jsonl cannot be created: File exists"):
        Sampler(tmp_path / "0.jsonl", "simulated:h200", GPUS, keeper=keeper).start()
    assert gone(pid)
    assert record()[0].end is not None


def test_what_is_said_while_it_waits_is_not_lost_or_believed(tmp_path: Path, keeper: Keeper) -> None:
    """Late announcements, nonsense, another close: none of it may end or begin a recording."""
    with Sampler(tmp_path / "one.jsonl", "simulated:h200", GPUS, keeper=keeper):
        pass
    child = keeper.take(("simulated:h200", GPUS))
    assert child is not None
    for word in (b"dense 1 2\n", b"record nonsense\n", b"\xff\n", b"record\n", CLOSE):
        child.say(word)
    keeper.keep(("simulated:h200", GPUS), child)
    with Sampler(tmp_path / "two.jsonl", "simulated:h200", GPUS, keeper=keeper) as second:
        assert second.pid == child.pid
    assert read_trace(second.path).end is not None


def test_a_path_survives_the_line(tmp_path: Path) -> None:
    """Quotes, line ends and letters of any script may be in the name of a folder."""
    for name in ("plain", 'a "b"', "zwei\nZeilen", "ß ∂"):
        path = str(tmp_path / name)
        line = recording(path)
        assert line.count(b"\n") == 1
        assert recorded_by(line.rstrip(b"\n")) == path
    assert recorded_by(CLOSE) is recorded_by(CLOSED) is None
    assert SamplerConfig(path="p", source="cpu").uuids == ()
