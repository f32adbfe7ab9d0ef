"""Waiting for the devices to be as cool as on record, watched by the real sampler."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_charllm.campaign import cooling
from pytest_charllm.campaign.cooling import cool_down
from pytest_charllm.records import DeviceLine, Line, Meta, SampleLine

S = 1_000_000_000


def recording(path: Path, readings: dict[str, list[tuple[float, float | None]]]) -> str:
    """A replay source: (seconds, degC) of each device."""
    lines: list[Line] = [Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=0, wall_s=0.0)]
    lines += [DeviceLine(uuid=uuid, name="NVIDIA H200", capabilities={"core_temp_c": "ok"}) for uuid in readings]
    lines += [
        SampleLine(uuid=uuid, mono_ns=round(at_s * S), latency_ns=1, values={"core_temp_c": temperature_c})
        for uuid, points in readings.items()
        for at_s, temperature_c in points
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return f"replay:{path}"


def test_nothing_to_cool(monkeypatch):
    """On a CPU no sampler is started, which could not even open NVML there."""
    monkeypatch.setattr(cooling, "Sampler", None)
    assert cool_down({}, "nvml") is None


def test_cool_already():
    """The first reading decides: a card that sat idle is not waited for."""
    assert cool_down({"GPU-a": 60.0, "GPU-b": 60.0}, "simulated:h200", limit_s=0.0) is None


def test_waits_until_every_device_is_cool(scratch):
    """One device cools, the other follows; the wait ends within the band of the recorded start, not at the limit."""
    source = recording(
        scratch / "cooling.jsonl",
        {"A": [(0.0, 33.0), (60.0, 33.0)], "B": [(0.0, 60.0), (0.5, 33.0), (60.0, 33.0)]},
    )
    assert cool_down({"A": 30.0, "B": 30.0}, source, limit_s=0.0) == (
        "B still at 60 degC (recorded start 30 degC) after 0 s of cooling"
    )
    assert cool_down({"A": 30.0, "B": 30.0}, source, limit_s=30.0, poll_s=0.05) is None


def test_says_how_warm_it_still_is(scratch):
    """One line of the device furthest above its target, not the hottest, after a bounded wait."""
    source = recording(scratch / "hot.jsonl", {uuid: [(0.0, c), (60.0, c)] for uuid, c in (("A", 70.0), ("B", 50.0))})
    told = cool_down({"A": 60.0, "B": 30.0}, source, limit_s=0.2, poll_s=0.1)
    assert told == "B still at 50 degC (recorded start 30 degC) after 0.2 s of cooling"


def test_a_band_above_the_target_is_cool(scratch):
    """Exactly the band in which the judge calls temperatures comparable, so that the wait is not in vain."""
    source = recording(scratch / "warm.jsonl", {"A": [(0.0, 33.1), (60.0, 33.1)]})
    assert cool_down({"A": 33.1 - cooling.START_BAND_C}, source, limit_s=0.0) is None
    assert cool_down({"A": 30.0}, source, limit_s=0.0) is not None


@pytest.mark.parametrize("uuids", [("A",), ("A", "B")])
def test_a_silent_sensor_is_not_cool(scratch, uuids):
    """Nothing read is not a low temperature: the confirmation would start from an unknown one unsaid."""
    readings: dict = {"A": [(0.0, None), (60.0, None)], "B": [(0.0, 30.0), (60.0, 30.0)]}
    source = recording(scratch / "silent.jsonl", readings)
    told = cool_down(dict.fromkeys(uuids, 30.0), source, limit_s=0.0)
    assert told == "A gives no temperature after 0 s of cooling"
