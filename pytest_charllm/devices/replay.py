"""A recorded telemetry file, played back in real time as if its devices were here."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_charllm.devices.source import WithoutExtras
from pytest_charllm.errors import BadRecord, DeviceError
from pytest_charllm.records.telemetry import (
    DeviceLine,
    SampleLine,
    SnapshotLine,
    decode_lines,
)


class ReplaySource(WithoutExtras):
    """A read returns the recorded sample that was current as long after the first one as it is now after opening.

    Once the recording is over, every value is None with that reason. Raises `BadRecord` for a broken recording, or
    one without samples of a device in it, and `DeviceError` for a named device that it lacks.
    """

    def __init__(
        self, path: str | Path, uuids: tuple[str, ...] = (), *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadRecord(f"{path}: cannot be read: {error.strerror}") from None
        meta, lines, _ = decode_lines(data, path)
        recorded = {line.uuid: line for line in lines if isinstance(line, DeviceLine)}
        absent = [uuid for uuid in uuids if uuid not in recorded]
        if absent:
            raise DeviceError(f"{path}: no device {', '.join(absent)} in this recording, only {', '.join(recorded)}")
        self.name = f"replay:{path.name}"
        self.library, self.driver = meta.library, meta.driver
        self._devices = {uuid: recorded[uuid] for uuid in uuids or recorded}
        self._snapshots = {(line.uuid, line.when): line for line in lines if isinstance(line, SnapshotLine)}
        self._samples: dict[str, list[SampleLine]] = {uuid: [] for uuid in self._devices}
        for line in lines:
            if isinstance(line, SampleLine) and line.uuid in self._samples:
                self._samples[line.uuid].append(line)
        for uuid, samples in self._samples.items():
            if not samples:
                raise BadRecord(f"{path}: no sample of {uuid} in this recording")
            samples.sort(key=_time)
        if not self._samples:
            raise BadRecord(f"{path}: no device in this recording")
        self._first_ns = min(samples[0].mono_ns for samples in self._samples.values())
        self._clock = clock
        self._opened_ns = clock()

    def devices(self) -> tuple[DeviceLine, ...]:
        return tuple(self._devices.values())

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        now_ns = self._clock()
        samples = self._samples[uuid]
        then_ns = now_ns - self._opened_ns + self._first_ns
        current = samples[max(0, bisect_right(samples, then_ns, key=_time) - 1)]
        values = {quantity: value for quantity, value in current.values.items() if quantity in wanted}
        missing = {quantity: reason for quantity, reason in current.missing.items() if quantity in wanted}
        if then_ns > samples[-1].mono_ns:
            values, missing = dict.fromkeys(values), dict.fromkeys(values, "the recording is over")
        return SampleLine(uuid=uuid, mono_ns=now_ns, latency_ns=0, values=values, missing=missing)

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        """As recorded; empty where the recording has none."""
        recorded = self._snapshots.get((uuid, when))
        values, missing = (recorded.values, recorded.missing) if recorded is not None else ({}, {})
        return SnapshotLine(uuid=uuid, when=when, mono_ns=self._clock(), values=values, missing=missing)


def _time(sample: SampleLine) -> int:
    return sample.mono_ns
