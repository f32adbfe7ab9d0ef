from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_charllm.devices.open import open_source
from pytest_charllm.devices.replay import ReplaySource
from pytest_charllm.errors import BadInput, BadRecord, DeviceError
from pytest_charllm.records.telemetry import DeviceLine, Meta, SampleLine

S = 1_000_000_000
META = Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=90 * S, wall_s=0.0, driver="580.159.04")


def recording(path: Path, *lines) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in (META, *lines)))
    return path


def sample(uuid: str, at_s: float, watts: float | None) -> SampleLine:
    missing = {} if watts is not None else {"power_instant_w": "Timeout (10)"}
    return SampleLine(
        uuid=uuid, mono_ns=round(at_s * S), latency_ns=9, values={"power_instant_w": watts, "core_temp_c": 50.0},
        missing=missing,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    return recording(
        tmp_path / "t.jsonl",
        DeviceLine(uuid="A", name="NVIDIA H200", capabilities={"power_instant_w": "ok"}),
        DeviceLine(uuid="B", name="NVIDIA H200"),
        sample("A", 100.0, 300.0), sample("B", 100.05, 100.0), sample("A", 100.2, None), sample("A", 100.1, 400.0),
    )  # fmt: skip


def test_playback_keeps_the_recorded_spacing(path):
    """A recording of another day plays at its own pace from the moment it is opened, unsorted lines or not."""
    now = [7 * S]
    source = ReplaySource(path, ("A",), clock=lambda: now[0])
    seen = []
    for after_ms in (0, 50, 120):
        now[0] = 7 * S + after_ms * 1_000_000
        read = source.read("A", {"power_instant_w"})
        seen.append((read.mono_ns - 7 * S, read.values))
    assert seen == [
        (0, {"power_instant_w": 300.0}),
        (50_000_000, {"power_instant_w": 300.0}),
        (120_000_000, {"power_instant_w": 400.0}),
    ]


def test_recorded_gaps_stay_gaps(path):
    """What was missing then is missing now, with the reason it had."""
    now = [0]
    source = ReplaySource(path, clock=lambda: now[0])
    now[0] = 200_000_000
    read = source.read("A", {"power_instant_w", "core_temp_c"})
    assert read.values == {"power_instant_w": None, "core_temp_c": 50.0}
    assert read.missing == {"power_instant_w": "Timeout (10)"}


def test_after_its_end_there_is_nothing(path):
    """Repeating the last value for ever would look like a stuck sensor under a steady load."""
    now = [0]
    source = ReplaySource(path, ("B",), clock=lambda: now[0])
    now[0] = S
    read = source.read("B", {"power_instant_w"})
    assert (read.values, read.missing) == ({"power_instant_w": None}, {"power_instant_w": "the recording is over"})


def test_devices_are_as_recorded(path):
    """The stack that made the recording belongs to it, and only the devices asked for are offered."""
    source = ReplaySource(path, ("A",))
    assert [line.uuid for line in source.devices()] == ["A"]
    assert (source.name, source.driver) == ("replay:t.jsonl", "580.159.04")


def test_fault_31_a_missing_device_is_an_error(path):
    """Never by position: another device's samples are not an answer."""
    with pytest.raises(DeviceError, match="no device C in this recording, only A, B"):
        ReplaySource(path, ("A", "C"))


def test_fault_31_broken_recordings_are_named(tmp_path):
    """Absent file, absent samples: one line each."""
    with pytest.raises(BadRecord, match=r"no\.jsonl: cannot be read"):
        ReplaySource(tmp_path / "no.jsonl")
    with pytest.raises(BadRecord, match="no sample of A"):
        ReplaySource(recording(tmp_path / "t.jsonl", DeviceLine(uuid="A", name="NVIDIA H200")))


def test_open_source_by_kind(path):
    """The strings a user and the client write."""
    assert open_source("cpu", ()).name == "cpu"
    assert open_source("simulated:h200", ("GPU-1",)).devices()[0].uuid == "GPU-1"
    assert open_source(f"replay:{path}", ("B",)).devices()[0].uuid == "B"
    for kind in ("amd:0", "nvml:0", "replay", "replay:", "simulated", ""):
        with pytest.raises(BadInput, match="replay:<path>"):
            open_source(kind, ())
