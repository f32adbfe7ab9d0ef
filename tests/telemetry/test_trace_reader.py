from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.errors import BadRecord
from pytest_charllm.records.telemetry import DeviceLine, EndLine, EventLine, Meta, SampleLine, decode_lines
from pytest_charllm.telemetry.reader import read_trace

META = Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=0, wall_s=0.0)
DEVICES = (DeviceLine(uuid="A", name="NVIDIA H200"), DeviceLine(uuid="B", name="NVIDIA H200"))
END = EndLine(mono_ns=900, samples=3, cpu_s=0.1, reason="stdin closed")


def sample(uuid: str, mono_ns: int, watts: float = 1.0) -> SampleLine:
    return SampleLine(uuid=uuid, mono_ns=mono_ns, latency_ns=5, values={"power_instant_w": watts})


def encoded(*lines) -> bytes:
    return b"".join((line if isinstance(line, bytes) else msgspec.json.encode(line)) + b"\n" for line in lines)


WHOLE = encoded(
    META, *DEVICES, sample("A", 100), sample("B", 110), EventLine(kind="gap", mono_ns=150, text="x"), sample("A", 200),
    END,
)  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def read_bytes(data: bytes):
        path = tmp_path / "t.jsonl"
        path.write_bytes(data)
        return read_trace(path)

    return read_bytes


def test_a_whole_file_comes_back(read):
    """Every kind of line lands where it belongs."""
    trace = read(WHOLE)
    assert trace.meta == META
    assert list(trace.devices) == ["A", "B"]
    assert trace.samples == {"A": (sample("A", 100), sample("A", 200)), "B": (sample("B", 110),)}
    assert [event.kind for event in trace.events] == ["gap"]
    assert (trace.end, trace.torn_lines) == (END, 0)


@given(st.integers(0, len(WHOLE)))
def test_fault_21_any_cut_is_a_torn_tail(cut):
    """SIGKILL or a full disk cuts anywhere: all whole lines are kept, the torn one is counted, nothing is invented."""
    data = WHOLE[:cut]
    whole = data.count(b"\n")
    if whole == 0:
        with pytest.raises(BadRecord, match="no whole line"):
            decode_lines(data, "t")
        return
    _, lines, torn = decode_lines(data, "t")
    assert len(lines) == whole - 1
    assert torn == (not data.endswith(b"\n"))


def test_fault_21_a_torn_tail_is_counted(read):
    """The file of a killed sampler stays usable, and is known to have no proper end."""
    trace = read(WHOLE[:-20])
    assert (trace.torn_lines, trace.end) == (1, None)
    assert len(trace.samples["A"]) == 2


def test_fault_31_samples_are_sorted_and_doubles_dropped(read):
    """A joined or damaged copy may disorder lines: interpolation needs order, energy must not count twice."""
    trace = read(encoded(META, DEVICES[0], sample("A", 300), sample("A", 100), sample("A", 300), sample("A", 200)))
    assert [line.mono_ns for line in trace.samples["A"]] == [100, 200, 300]
    assert [(event.kind, event.text) for event in trace.events] == [("duplicates", "1 samples dropped")]


def test_a_device_without_samples_is_still_there(read):
    """A device that died at once must not vanish from the record: an empty series is evidence."""
    assert read(encoded(META, *DEVICES, sample("A", 1))).samples["B"] == ()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (encoded(META, DEVICES[0], b"garbage", sample("A", 1)), "line 3: .*malformed"),
        (encoded(META, DEVICES[0], b"", sample("A", 1)), "line 3: "),
        (encoded(META, DEVICES[0], sample("A", 1), b'{"line":"sample","uuid":"A"}'), "line 4: .*mono_ns"),
        (encoded(META, DEVICES[0], b'{"line":"poem"}'), "line 3: .*poem"),
        (encoded(META, DEVICES[0], encoded(sample("A", 1)).strip().replace(b"1.0", b"NaN")), "line 3: "),
        (encoded(META, DEVICES[0], sample("C", 1)), "line 3: sample of C"),
        (encoded(META, sample("A", 1)), "line 2: sample of A"),
        (encoded(META, DEVICES[0], DEVICES[0]), "line 3: device A is introduced twice"),
        (encoded(META, DEVICES[0], META), "line 3: a second beginning"),
        (encoded(DEVICES[0]), "line 1: "),
        (encoded(msgspec.structs.replace(META, schema=7)), "line 1: field schema is 7, this version reads 1"),
        (b"", "no whole line"),
    ],
)
def test_fault_31_what_is_broken_is_named_by_line(read, data, complaint):
    """Only a torn end is excusable: anything else means that the file is not what the sampler wrote."""
    with pytest.raises(BadRecord, match=complaint) as error:
        read(data)
    assert "t.jsonl" in str(error.value)


def test_a_missing_file_is_a_bad_record(tmp_path):
    """The path belongs into the message, not into a traceback."""
    with pytest.raises(BadRecord, match=r"absent\.jsonl: cannot be read: No such file"):
        read_trace(Path(tmp_path / "absent.jsonl"))
