"""The real sampler process, on simulated devices."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil
import pytest

from pytest_charllm.devices.process import search_environment
from pytest_charllm.errors import BadRecord, HarnessError
from pytest_charllm.records import Trace
from pytest_charllm.telemetry import child
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.config import SamplerConfig
from pytest_charllm.telemetry.dense import Kind, Span
from pytest_charllm.telemetry.reader import read_trace

PATIENCE_S = 30.0
GPUS = ("GPU-a", "GPU-b")


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """A child has ended once it can be waited for: its main thread is a zombie before its other threads are gone."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def events(trace: Trace, kind: str) -> list[str | None]:
    return [event.uuid for event in trace.events if event.kind == kind]


@pytest.fixture
def sampler(tmp_path) -> Iterator[Callable[..., Sampler]]:
    made: list[Sampler] = []

    def make(source: str = "simulated:h200", uuids: tuple[str, ...] = GPUS, **options) -> Sampler:
        made.append(Sampler(tmp_path / "telemetry.jsonl", source, uuids, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def process(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """The bare process, with a configuration of one's own; ready when it says so."""
    made: list[subprocess.Popen] = []

    def start(**config) -> subprocess.Popen:
        path = tmp_path / "config.json"
        config = {"path": str(tmp_path / "telemetry.jsonl"), "source": "simulated:h200", "uuids": GPUS, **config}
        path.write_bytes(msgspec.json.encode(SamplerConfig(**config)))
        command = (sys.executable, "-m", "pytest_charllm.telemetry", str(path))
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        assert made[-1].stdout.readline() == b"ready\n"
        return made[-1]

    yield start
    for each in made:
        with each:
            each.kill()


def test_start_to_stop(sampler, tmp_path):
    """The normal life: first samples are in the file when `start` returns, a proper end when `stop` does."""
    running = sampler()
    running.start()
    early = read_trace(tmp_path / "telemetry.jsonl")
    assert all(early.samples[uuid] for uuid in GPUS)
    until(lambda: len(read_trace(running.path).samples["GPU-b"]) >= 5, "five samples flushed")
    assert running.stop() == ()
    trace = read_trace(running.path)
    assert (trace.meta.source, trace.meta.pid) == ("simulated:h200", running.pid)
    assert trace.end.reason == "stdin closed"
    assert trace.end.samples == sum(map(len, trace.samples.values()))
    assert trace.end.cpu_s > 0
    assert trace.torn_lines == 0
    anchors = [event for event in trace.events if event.kind == "anchor"]
    assert len(anchors) >= 2
    assert all(event.wall_s is not None for event in anchors)
    for samples in trace.samples.values():
        assert all(early.mono_ns < late.mono_ns for early, late in pairwise(samples))
        assert all(sample.values["power_instant_w"] > 0 for sample in samples)
    assert running.stop() == ()
    assert is_gone(running.pid)


def test_it_is_one_light_process(sampler):
    """A sampler that loads torch costs a gigabyte and a core's worth of start-up beside the ranks it measures."""
    before = set(psutil.Process().children(recursive=True))
    with sampler() as running:
        (only,) = set(psutil.Process().children(recursive=True)) - before
        assert only.pid == running.pid
        assert "torch" not in Path(f"/proc/{running.pid}/maps").read_text()
        assert only.memory_info().rss < 64 << 20


def test_the_sampler_imports_little():
    """Neither torch nor numpy nor NVML before a source is opened, also not hidden behind a package. And nothing that a
    sampler has no use for: starting is a quarter of what it costs, in every launch."""
    script = (
        "import sys, pytest_charllm.telemetry.sampler, pytest_charllm.devices.nvml\n"
        "ours = {name for name in sys.modules if name.startswith('pytest_charllm.records.')}\n"
        "assert ours == {'pytest_charllm.records.base', 'pytest_charllm.records.telemetry'}, ours\n"
        "others = 'torch numpy pynvml pytest psutil dataclasses pathlib statistics pytest_charllm.scenario site'\n"
        "assert not set(others.split()) & set(sys.modules), sorted(sys.modules)\n"
    )
    environ = search_environment()
    subprocess.run((sys.executable, "-S", "-c", script), check=True, timeout=60, env=environ)


PARENT = """
import sys, time
from pathlib import Path
from pytest_charllm.telemetry.client import Sampler
sampler = Sampler(Path(sys.argv[1]), "simulated:h200")
sampler.start()
print(sampler.pid, flush=True)
time.sleep(600)
"""


def test_a_helper_of_the_tests_is_no_standard_module(sampler, tmp_path, monkeypatch):
    """pytest puts the folders of tests first on the path: a `queue.py` among them ended every launch as HARNESS."""
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the standard one')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sampler().start()


def test_a_killed_parent_leaves_no_sampler(tmp_path):
    """After SIGKILL of pytest no process may stay behind, and what was sampled stays readable."""
    path = tmp_path / "telemetry.jsonl"
    parent = subprocess.Popen((sys.executable, "-c", PARENT, str(path)), stdout=subprocess.PIPE)
    with parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_gone(pid)
    assert read_trace(path).samples["GPU-simulated-0"]


ORPHANING = """
import os, subprocess, sys
child = subprocess.Popen(
    (sys.executable, "-m", "pytest_charllm.telemetry", sys.argv[1]), stdin=int(sys.argv[2]),
    stdout=subprocess.PIPE,
)
assert child.stdout.readline() == b"ready\\n"
print(child.pid, flush=True)
os._exit(0)
"""


def test_an_orphan_ends_though_its_pipe_stays_open(tmp_path):
    """Another process may have inherited the write end of its stdin, so that EOF never comes."""
    read_end, write_end = os.pipe()
    try:
        config = tmp_path / "config.json"
        config.write_bytes(
            msgspec.json.encode(SamplerConfig(path=str(tmp_path / "telemetry.jsonl"), source="simulated:h200"))
        )
        command = (sys.executable, "-c", ORPHANING, str(config), str(read_end))
        done = subprocess.run(command, pass_fds=(read_end,), stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
        until(lambda: is_gone(int(done.stdout)), "the orphan ended")
    finally:
        os.close(read_end)
        os.close(write_end)
    assert read_trace(tmp_path / "telemetry.jsonl").end.reason == "SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_properly(process, tmp_path, number):
    """A scheduler's TERM must not cost the last second of data nor the end line."""
    running = process()
    running.send_signal(number)
    assert running.wait(PATIENCE_S) == 0
    assert read_trace(tmp_path / "telemetry.jsonl").end.reason == number.name


def test_fault_05_a_hung_read_is_a_gap_then_given_up(process, tmp_path):
    """A driver call in D state never returns: the other GPU goes on, and the end is still clean and prompt."""
    running = process(source="simulated:h200+hang", gap_s=0.3, abandon_s=1.0)
    path = tmp_path / "telemetry.jsonl"
    until(lambda: events(read_trace(path), "lost"), "the hung device was given up")
    seen = len(read_trace(path).samples["GPU-b"])
    until(lambda: len(read_trace(path).samples["GPU-b"]) > seen, "the other device goes on")
    running.stdin.close()
    assert running.wait(PATIENCE_S) == 0
    trace = read_trace(path)
    assert events(trace, "gap") == ["GPU-a"]
    assert events(trace, "lost") == ["GPU-a"]
    assert len(trace.samples["GPU-a"]) == 10
    assert trace.end.reason == "stdin closed"


def test_a_stall_is_a_gap_and_goes_on(process, tmp_path):
    """A call of a second is on record as a gap, but its device is not given up."""
    process(source="simulated:h200+stall", gap_s=0.3)
    path = tmp_path / "telemetry.jsonl"
    until(lambda: len(read_trace(path).samples["GPU-a"]) > 11, "the device goes on after the stall")
    trace = read_trace(path)
    assert events(trace, "gap") == ["GPU-a"]
    assert events(trace, "lost") == []


def test_fault_03_a_lost_gpu_is_an_event_and_the_others_go_on(process, tmp_path):
    """GpuIsLost in mid-run: an event names the card, the other cards' data is kept, and the end is a proper one."""
    running = process(source="simulated:h200+lost")
    path = tmp_path / "telemetry.jsonl"
    until(lambda: events(read_trace(path), "lost") == ["GPU-a"], "the loss is on record")
    seen = len(read_trace(path).samples["GPU-b"])
    until(lambda: len(read_trace(path).samples["GPU-b"]) > seen, "the other device goes on")
    running.stdin.close()
    assert running.wait(PATIENCE_S) == 0
    assert read_trace(path).end.reason == "stdin closed"


def test_fault_04_a_library_that_forgot_its_devices_is_started_anew(process, tmp_path):
    """A daemon-reload takes a container's device access away: every call answers Unknown (999) until then."""
    process(source="simulated:h200+unknown")
    path = tmp_path / "telemetry.jsonl"
    until(lambda: events(read_trace(path), "restarted"), "NVML was started anew")
    until(lambda: read_trace(path).samples["GPU-a"][-1].values.get("power_instant_w"), "GPU-a is read again")
    gap = [sample for sample in read_trace(path).samples["GPU-a"] if "power_instant_w" in sample.missing]
    assert {sample.missing["power_instant_w"] for sample in gap} <= {"Unknown (999)", "Uninitialized (1)"}
    assert gap


def test_slow_quantities_are_read_once_a_second_and_densely_when_announced(sampler):
    """The energy counter takes 4 ms: at 10 Hz it cost a sampler 9 % of a core, at 1 Hz the edges would be blurred."""
    running = sampler(uuids=("GPU-a",))
    running.start()
    until(lambda: len(read_trace(running.path).samples["GPU-a"]) >= 25, "2.5 s of samples")
    seldom = read_trace(running.path).samples["GPU-a"]
    now_ns = time.monotonic_ns()
    running.announce(Span(now_ns, now_ns + 5_000_000_000))
    until(lambda: len(read_trace(running.path).samples["GPU-a"]) >= len(seldom) + 12, "a second more")
    assert running.stop() == ()
    trace = read_trace(running.path)
    after = [sample for sample in trace.samples["GPU-a"] if sample.mono_ns > now_ns + 300_000_000]
    assert sum("energy_j" in sample.values for sample in seldom) < 0.4 * len(seldom)
    assert all("power_instant_w" in sample.values for sample in trace.samples["GPU-a"])
    assert all("energy_j" in sample.values for sample in after)
    assert sum("margin_c" in sample.values for sample in after) < 0.4 * len(after)
    assert [event.kind for event in trace.events if event.kind == "dense"] == ["dense"]
    assert set(trace.devices["GPU-a"].slow) >= {"energy_j", "margin_c", "throttle_hw_thermal_ns"}
    assert [snapshot.when for snapshot in trace.snapshots] == ["start", "end"]
    assert trace.end.pace["GPU-a"].passes == len(trace.samples["GPU-a"])
    assert trace.end.pace["GPU-a"].period_s == 0.1
    assert "energy_j" in trace.samples["GPU-a"][-1].values


def test_company_on_a_gpu_is_on_record(process, tmp_path):
    """Somebody's job that comes in mid-window: looked for before a launch alone, it would read as a slow stack. Our own
    ranks compute there too, and are told from strangers by whom they descend from."""
    stranger = os.getpid()
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as campaign:
        # As if the campaign were another process than the one that computes; its pid must not end the sampler early.
        running = process(source="simulated:h200+company", slow_period_s=0.2, ours_pid=campaign.pid)
        path = tmp_path / "telemetry.jsonl"
        until(lambda: events(read_trace(path), "processes"), "the stranger is on record")
        running.stdin.close()
        assert running.wait(PATIENCE_S) == 0
        campaign.stdin.close()
    told = [event for event in read_trace(path).events if event.kind == "processes"]
    assert [(event.uuid, event.text) for event in told] == [
        ("GPU-a", f"pid {stranger} computes on this device and is none of ours")
    ]


def test_our_own_processes_are_no_company(sampler):
    """The ranks descend from who started the sampler; flagging them would make every launch invalid."""
    running = sampler("simulated:h200+company", ("GPU-a",))
    running.start()
    until(lambda: len(read_trace(running.path).samples["GPU-a"]) >= 45, "several looks")
    assert running.stop() == ()
    assert events(read_trace(running.path), "processes") == []


def test_slow_passes_are_slowed_on_record(process, tmp_path):
    """Never silently slower: a rate that the card cannot bear is halved, and the file says so."""
    process(source="simulated:h200+slow", period_s=0.05)
    path = tmp_path / "telemetry.jsonl"
    until(lambda: events(read_trace(path), "slowed")[:1] == ["GPU-a"], "a slowed event")


def test_the_file_is_bounded(process, tmp_path):
    """A run forgotten over a weekend must not fill the disk; why it ended is in the file."""
    running = process(max_bytes=30_000)
    assert running.wait(PATIENCE_S) == 1
    assert b"limit of 30000 bytes" in running.stderr.read()
    path = tmp_path / "telemetry.jsonl"
    assert "limit of 30000 bytes" in read_trace(path).end.reason
    assert path.stat().st_size < 42_000


def test_fault_21_a_full_disk_is_told(sampler):
    """A write that fails must end in a note, not in a file that just stops."""
    running = sampler()
    running.start()
    size = running.path.stat().st_size
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size + 700, size + 700))
    until(lambda: is_gone(running.pid), "the sampler gave up")
    (note,) = running.stop()
    assert "ended early (exit 1)" in note
    assert "cannot be written: File too large" in note
    assert read_trace(running.path).torn_lines <= 1


def test_fault_21_a_killed_sampler_is_told(sampler):
    """The kernel's OOM killer may take it: the launch must know that its telemetry is not whole."""
    running = sampler()
    running.start()
    os.kill(running.pid, signal.SIGKILL)
    until(lambda: is_gone(running.pid), "the sampler is dead")
    (note,) = running.stop()
    assert "(signal 9)" in note
    assert read_trace(running.path).end is None


def test_stopping_a_frozen_sampler_is_bounded(sampler, monkeypatch):
    """A sampler that reacts to nothing must not hang the run: first asked, then TERM, then KILL."""
    monkeypatch.setattr(child, "_STEP_S", 0.2)
    running = sampler()
    running.start()
    os.kill(running.pid, signal.SIGSTOP)
    (note,) = running.stop()
    assert "had to be killed" in note
    assert is_gone(running.pid)


def test_an_existing_file_is_never_written_to(sampler, tmp_path):
    """Two samplers in one file would make a trace of two truths."""
    (tmp_path / "telemetry.jsonl").write_text("precious")
    with pytest.raises(HarnessError, match=r"telemetry.jsonl cannot be created: File exists"):
        sampler().start()
    assert (tmp_path / "telemetry.jsonl").read_text() == "precious"


def test_a_source_that_cannot_be_opened_is_told(sampler):
    """The cause is on the sampler's stderr; the user must see it without digging."""
    running = sampler("simulated:h900")
    with pytest.raises(HarnessError, match="simulated profile 'h900' is unknown"):
        running.start()
    assert is_gone(running.pid)
    assert running.stop() == ()


def test_a_late_start_is_bounded(sampler):
    """NVML may hang while opening: no process is left and the message says what was waited for."""
    running = sampler(start_timeout_s=0.001)
    with pytest.raises(HarnessError, match=r"gave no first sample of each device in 0\.001 s"):
        running.start()
    assert is_gone(running.pid)


def test_a_directory_that_is_not_there_is_told(tmp_path):
    """Not writable, not there: a line, no traceback of a subprocess."""
    with pytest.raises(HarnessError, match=r"cannot be started: .*No such file"):
        Sampler(tmp_path / "absent" / "telemetry.jsonl", "cpu").start()


def test_this_host_can_be_sampled(sampler):
    """The cpu source on whatever this machine lets us read, also nothing: samples come all the same."""
    with sampler("cpu", ()) as running:
        pass
    trace = read_trace(running.path)
    (uuid,) = trace.devices
    assert uuid.startswith("cpu-")
    assert trace.samples[uuid]


def test_a_recording_can_be_sampled_again(sampler, tmp_path):
    """What one sampler wrote, a replay source reads: the formats cannot drift apart."""
    with sampler() as first:
        until(lambda: len(read_trace(first.path).samples["GPU-a"]) >= 5, "something to replay")
    again = Sampler(tmp_path / "again.jsonl", f"replay:{first.path}", ("GPU-a",))
    with again:
        pass
    trace = read_trace(again.path)
    assert list(trace.devices) == ["GPU-a"]
    assert trace.samples["GPU-a"][0].values == read_trace(first.path).samples["GPU-a"][0].values


def test_a_file_of_another_schema_is_no_recording(sampler, tmp_path):
    """The sampler refuses it with the reader's own words."""
    recording = tmp_path / "old.jsonl"
    recording.write_text('{"line":"meta","schema":99}\n')
    with pytest.raises(BadRecord, match="schema is 99"):
        read_trace(recording)
    with pytest.raises(HarnessError, match=r"old\.jsonl: line 1: field schema is 99"):
        sampler(f"replay:{recording}", ()).start()


def test_a_rest_and_what_is_left_out_are_on_record(sampler):
    """Never silently slower, nor silently blind: who reads the trace must see from when to when there was less, and why
    a quantity that the card could tell is missing."""
    running = sampler(uuids=("GPU-a",), without=("margin_c", "link_tx_kib"))
    running.start()
    now_ns = time.monotonic_ns()
    running.announce(Span(now_ns, now_ns + 60_000_000_000, Kind.REST))
    time.sleep(2.5)
    woken_ns = time.monotonic_ns()
    for _ in range(2):
        running.announce(Span(woken_ns, woken_ns + 60_000_000_000, Kind.NEAR))
    until(lambda: read_trace(running.path).samples["GPU-a"][-1].mono_ns > woken_ns + 500_000_000, "it is at work again")
    assert running.stop() == ()
    trace = read_trace(running.path)
    told = [event for event in trace.events if event.kind in ("rest", "near")]
    assert [(event.kind, event.mono_ns) for event in told] == [("rest", now_ns), ("near", woken_ns)]
    assert told[0].text.startswith("a pass every 0.7 s and slow quantities every 60 s")
    rested = [sample for sample in trace.samples["GPU-a"] if now_ns + 300_000_000 < sample.mono_ns < woken_ns]
    assert 1 <= len(rested) <= 2 * (woken_ns - now_ns) / 1e9
    assert not any("energy_j" in sample.values for sample in rested)
    assert not any("margin_c" in sample.values for sample in trace.samples["GPU-a"])
    capabilities = trace.devices["GPU-a"].capabilities
    assert "left out" in capabilities["margin_c"]
    assert "NotSupported" in capabilities["link_tx_kib"]
    assert {"energy_j", "power_instant_w"} <= {quantity for quantity, answer in capabilities.items() if answer == "ok"}
