"""Whatever is in a telemetry file, reading it ends in a trace or in one line naming the file: never in a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_charllm.devices.replay import ReplaySource
from pytest_charllm.errors import BadRecord
from pytest_charllm.records.telemetry import (
    DeviceLine,
    EndLine,
    EventLine,
    Meta,
    Part,
    RingLine,
    SampleLine,
    SnapshotLine,
)
from pytest_charllm.telemetry.reader import read_trace

T = TypeVar("T")

HEAD = (
    Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=0, wall_s=0.0, slow_period_s=1.0),
    DeviceLine(uuid="A", name="NVIDIA H200", capabilities={"power_instant_w": "ok"}, parts=(Part(uuid="A-1"),)),
    DeviceLine(uuid="B", name="NVIDIA H200", slow=("energy_j",)),
)
BODY = (
    SnapshotLine(uuid="A", when="start", mono_ns=5, values={"ecc_corrected": 0.0, "partition": "none"}),
    *(SampleLine(uuid=u, mono_ns=n, latency_ns=1, values={"power_instant_w": n / 3, "x": None}) for n in range(10, 20)
      for u in "AB"),
    RingLine(uuid="B", mono_ns=(1, 2, 3), power_w=(1.0, 2.0, 3.0)),
    EventLine(kind="anchor", mono_ns=12, wall_s=1.0, boot_ns=12, text=""),
    EndLine(mono_ns=99, samples=20, cpu_s=0.1, reason="stdin closed"),
)  # fmt: skip
LINES = [msgspec.json.encode(line) for line in (*HEAD, *BODY)]


@st.composite
def damaged(draw) -> bytes:
    """A good file after a few things that happen to files."""
    lines = list(LINES)
    rng = random.Random(draw(st.integers(0, 2**32)))
    for harm in draw(st.lists(st.sampled_from(HARMS), min_size=1, max_size=4)):
        harm(lines, rng)
    data = b"\n".join(lines) + b"\n"
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


def shuffle(lines: list[bytes], rng: random.Random) -> None:
    body = lines[3:]
    rng.shuffle(body)
    lines[3:] = body


def shuffle_all(lines: list[bytes], rng: random.Random) -> None:
    rng.shuffle(lines)


def double(lines: list[bytes], rng: random.Random) -> None:
    if lines:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))


def drop(lines: list[bytes], rng: random.Random) -> None:
    if lines:
        lines.pop(rng.randrange(len(lines)))


def not_finite(lines: list[bytes], rng: random.Random) -> None:
    """What other writers put there: NaN and Infinity are no JSON, and 1e999 is no float."""
    if lines:
        at = rng.randrange(len(lines))
        value = rng.choice([b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null", b"-0.0", b'"N/A"'])
        lines[at] = lines[at].replace(b"1.0", value).replace(b"5.0", value).replace(b":0.0", b":" + value)


def mutate(lines: list[bytes], rng: random.Random) -> None:
    """One field of one line becomes something else."""
    try:
        at = rng.randrange(len(lines))
        line = json.loads(lines[at])
        key = rng.choice(list(line))
        line[key] = rng.choice([None, -1, 2**70, "", [], {}, 1e300, True, {"power_instant_w": [1]}, "A"])
        lines[at] = json.dumps(line).encode()
    except (ValueError, IndexError):
        return


def flip(lines: list[bytes], rng: random.Random) -> None:
    if lines and (line := bytearray(rng.choice(lines))):
        line[rng.randrange(len(line))] = rng.randrange(256)
        lines[rng.randrange(len(lines))] = bytes(line)


def outcome(read: Callable[[], T]) -> T | str:
    """What came of it, or the one line that says why nothing did. Any other exception is the bug looked for."""
    try:
        return read()
    except BadRecord as error:
        return str(error)


HARMS = [shuffle, shuffle_all, double, drop, not_finite, mutate, flip]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged())
def test_fault_31_a_damaged_file_is_read_or_refused_by_name(tmp_path, data):
    """Torn, reordered, doubled, not finite: what can be trusted comes back in order, the rest is one line."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    trace = outcome(lambda: read_trace(path))
    if isinstance(trace, str):
        assert str(path) in trace
        assert "\n" not in trace
    else:
        assert set(trace.samples) == set(trace.devices)
        assert all(a.mono_ns < b.mono_ns for samples in trace.samples.values() for a, b in pairwise(samples))
    source = outcome(lambda: ReplaySource(path, clock=lambda: 0))
    if isinstance(source, str):
        assert str(path) in source
    else:
        for device in source.devices():
            source.read(device.uuid, {"power_instant_w"})
            source.snapshot(device.uuid, "start")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_by_name(tmp_path, data):
    """Another file by the same name."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(BadRecord, match=r"t\.jsonl"):
        read_trace(path)


def test_reordered_and_doubled_samples_are_the_same_trace(tmp_path):
    """Nothing is ever taken by its position in the file."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    whole = read_trace(path)
    lines = list(LINES)
    rng = random.Random(1)
    double_from = lines[4]
    shuffle(lines, rng)
    path.write_bytes(b"\n".join([*lines, double_from]) + b"\n")
    again = read_trace(path)
    assert again.samples == whole.samples
    assert again.power_ring == whole.power_ring == {"B": ((1, 1.0), (2, 2.0), (3, 3.0))}
    assert [event.kind for event in again.events if event.kind != "anchor"] == ["duplicates"]
