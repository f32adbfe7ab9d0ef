"""Reading a telemetry file back: strictly, except for what a killed sampler cannot help."""

from __future__ import annotations

from pathlib import Path

from pytest_charllm.errors import BadRecord
from pytest_charllm.records.telemetry import (
    DeviceLine,
    EndLine,
    EventLine,
    Meta,
    RingLine,
    SampleLine,
    SnapshotLine,
    Trace,
    decode_lines,
)


def read_trace(path: Path) -> Trace:
    """The whole file, samples in time order per device, duplicates dropped and counted in an event.

    Raises `BadRecord` naming the line: of a foreign schema, broken anywhere but at a torn end, or of an unknown device.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRecord(f"{path}: cannot be read: {error.strerror}") from None
    meta, lines, torn = decode_lines(data, path)
    devices: dict[str, DeviceLine] = {}
    samples: dict[str, dict[int, SampleLine]] = {}
    events: list[EventLine] = []
    end: EndLine | None = None
    snapshots: list[SnapshotLine] = []
    rings: dict[str, dict[int, float]] = {}
    duplicates = 0
    for number, line in enumerate(lines, start=2):
        if isinstance(line, SampleLine | SnapshotLine | RingLine) and line.uuid not in devices:
            what = type(line).__name__.removesuffix("Line").lower()
            raise BadRecord(f"{path}: line {number}: {what} of {line.uuid}, a device that no line introduced")
        if isinstance(line, SampleLine):
            known = len(samples[line.uuid])
            samples[line.uuid].setdefault(line.mono_ns, line)
            duplicates += len(samples[line.uuid]) == known
        elif isinstance(line, EventLine):
            events.append(line)
        elif isinstance(line, SnapshotLine):
            snapshots.append(line)
        elif isinstance(line, RingLine):
            if len(line.mono_ns) != len(line.power_w):
                raise BadRecord(f"{path}: line {number}: {len(line.mono_ns)} times for {len(line.power_w)} readings")
            rings.setdefault(line.uuid, {}).update(zip(line.mono_ns, line.power_w, strict=True))
        elif isinstance(line, DeviceLine):
            if line.uuid in devices:
                raise BadRecord(f"{path}: line {number}: device {line.uuid} is introduced twice")
            devices[line.uuid] = line
            samples[line.uuid] = {}
        elif isinstance(line, EndLine):
            end = line
        elif isinstance(line, Meta):
            raise BadRecord(f"{path}: line {number}: a second beginning; two files were joined")
    if duplicates:
        events.append(EventLine(kind="duplicates", mono_ns=meta.mono_ns, text=f"{duplicates} samples dropped"))
    return Trace(
        meta=meta,
        devices=devices,
        samples={uuid: tuple(by_time[ns] for ns in sorted(by_time)) for uuid, by_time in samples.items()},
        events=tuple(events),
        end=end,
        torn_lines=torn,
        snapshots=tuple(snapshots),
        power_ring={uuid: tuple(sorted(ring.items())) for uuid, ring in rings.items()},
    )
