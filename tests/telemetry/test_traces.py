"""The traces under tests/data/traces: one recorded, the others made by the simulator and said to be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_charllm.devices.replay import ReplaySource
from pytest_charllm.devices.simulated.board import PROFILES
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.records.telemetry import EndLine, Line, Meta, SampleLine
from pytest_charllm.telemetry.reader import read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
RECORDED = TRACES / "h200-sxm-recorded.jsonl"
SYNTHETIC = {profile: TRACES / f"{profile}-synthetic.jsonl" for profile in ("h100", "mi250", "mi300x")}
S = 1_000_000_000


def synthetic(profile: str) -> bytes:
    """Five seconds from idle into load, as a sampler at 10 Hz would have written them."""
    now = [S]

    def sleep(seconds: float) -> None:
        now[0] += round(seconds * S)

    uuids = tuple(f"GPU-simulated-{i}" for i in range(PROFILES[profile].gpus_per_package))
    source = Simulation(profile, uuids, clock=lambda: now[0], sleep=sleep).source()
    (device,) = source.devices()
    wanted = [quantity for quantity, answer in device.capabilities.items() if answer == "ok"]
    lines: list[Line] = [
        Meta(
            source=source.name, host="synthetic", period_s=0.1, pid=1, mono_ns=S, wall_s=0.0, library=source.library,
            driver=source.driver, slow_period_s=1.0,
        ),
        device,
        source.snapshot(device.uuid, "start"),
    ]  # fmt: skip
    for tick in range(50):
        sleep(0.1)
        lines.append(source.read(device.uuid, [q for q in wanted if tick % 10 == 0 or q not in device.slow]))
    lines.append(EndLine(mono_ns=now[0], samples=50, cpu_s=0.0, reason="synthetic"))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@pytest.mark.parametrize("profile", SYNTHETIC)
def test_a_synthetic_trace_is_what_the_simulator_makes(profile):
    """A file that is said to be synthetic must be nothing else; it also pins what an AMD source writes."""
    assert SYNTHETIC[profile].read_bytes() == synthetic(profile)
    assert read_trace(SYNTHETIC[profile]).meta.source == f"simulated:{profile}"


def test_the_recorded_trace_reads_as_on_the_day():
    """Recorded on an H200 by an earlier version, without a slow tier: old recordings stay readable."""
    trace = read_trace(RECORDED)
    ((uuid, samples),) = trace.samples.items()
    assert (trace.meta.source, trace.meta.driver, trace.meta.slow_period_s) == ("nvml", "580.159.04", None)
    assert trace.devices[uuid].slow == ()
    assert trace.device_of(uuid) is trace.devices[uuid]
    assert trace.device_of(None, "00000000:00:06.0") is trace.devices[uuid]
    watts = [sample.values["power_instant_w"] for sample in samples]
    assert min(watts) < 140
    assert max(watts) > 700
    energy_j = samples[-1].values["energy_j"] - samples[0].values["energy_j"]
    mean_w = energy_j / ((samples[-1].mono_ns - samples[0].mono_ns) / S)
    assert 400 < mean_w < 700


@pytest.mark.parametrize("path", [RECORDED, *SYNTHETIC.values()], ids=lambda path: path.stem)
def test_each_trace_replays(path):
    """As if its devices were here, from the first sample to the last."""
    trace = read_trace(path)
    now = [0]
    source = ReplaySource(path, clock=lambda: now[0])
    (device,) = source.devices()
    samples = trace.samples[device.uuid]
    played: list[SampleLine] = []
    for sample in samples:
        now[0] = sample.mono_ns - samples[0].mono_ns
        played.append(source.read(device.uuid, sample.values.keys()))
    assert [sample.values for sample in played] == [sample.values for sample in samples]


def test_the_folder_holds_nothing_else():
    """A trace that nothing tests is a trace that nobody knows the origin of."""
    assert set(TRACES.glob("*.jsonl")) == {RECORDED, *SYNTHETIC.values()}
    assert all(path.name in (TRACES / "README.md").read_text() for path in TRACES.glob("*.jsonl"))
