"""The sampler process: one a node, sampling before any rank has work, reading each device in a thread of its own.

``python -m pytest_charllm.telemetry.sampler CONFIG.json`` writes JSON lines until its stdin closes, its parent ends, or
it is told to stop by SIGTERM or SIGINT. It loads no training framework and changes no device's settings.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from pytest_charllm.devices.open import open_source
from pytest_charllm.devices.process import claim_stdout, die_with_parent
from pytest_charllm.devices.source import DeviceLostError, TelemetrySource
from pytest_charllm.errors import CharllmError, HarnessError
from pytest_charllm.records.base import from_json
from pytest_charllm.records.telemetry import DeviceLine, EndLine, EventLine, Line, Meta, SampleLine
from pytest_charllm.telemetry.config import READY, SamplerConfig
from pytest_charllm.telemetry.pace import BUSY_SHARE, Pace

FLUSH_S = 1.0
ANCHOR_S = 10.0
_HOUSEKEEPING_S = 0.25


class Stop(NamedTuple):
    """Why sampling ends. `ok`: someone asked for it."""

    reason: str
    ok: bool = True


Inbox = queue.SimpleQueue[SampleLine | EventLine | Stop]


class DeviceReader(threading.Thread):
    """Reads one device at its pace. The driver may hold it for ever, so it is a daemon and its owner watches it."""

    def __init__(self, source: TelemetrySource, device: DeviceLine, config: SamplerConfig, inbox: Inbox) -> None:
        super().__init__(name=f"reader {device.uuid}", daemon=True)
        self._source, self.uuid, self._inbox = source, device.uuid, inbox
        self._wanted = frozenset(quantity for quantity, answer in device.capabilities.items() if answer == "ok")
        self._pace = Pace(
            period_s=config.period_s,
            jitter_s=config.jitter_s,
            seed=f"{config.seed}/{device.uuid}",
            start_ns=time.monotonic_ns(),
        )
        self.reading_since_ns: int | None = None
        self.abandoned = False

    def run(self) -> None:
        while True:
            self.reading_since_ns = time.monotonic_ns()
            try:
                sample = self._source.read(self.uuid, self._wanted)
            except DeviceLostError as lost:
                return self._event("lost", str(lost))
            except Exception as error:
                return self._event("error", f"{type(error).__name__}: {error}; this device is read no more")
            finally:
                self.reading_since_ns = None
            if self.abandoned:
                return None
            self._inbox.put(sample)
            now_ns = time.monotonic_ns()
            if self._pace.too_slow(sample.latency_ns, now_ns):
                busy = f"passes take over {100 * BUSY_SHARE:g} % of the period"
                self._event("slowed", f"{busy}, which is now {self._pace.period_s:g} s")
            time.sleep(self._pace.wait_s(now_ns))

    def _event(self, kind: str, text: str) -> None:
        self._inbox.put(EventLine(kind=kind, mono_ns=time.monotonic_ns(), text=text, uuid=self.uuid))


class Watchdog:
    """Notices reads that do not return: a gap on record first, then the device is given up."""

    def __init__(self, readers: list[DeviceReader], gap_s: float, abandon_s: float) -> None:
        self._readers = readers
        self._gap_s, self._abandon_s = gap_s, abandon_s
        self._reported: dict[str, int] = {}

    def check(self, now_ns: int) -> list[EventLine]:
        events = []
        for reader in self._readers:
            since_ns = reader.reading_since_ns
            if since_ns is None or reader.abandoned:
                continue
            late_s = (now_ns - since_ns) / 1e9
            if late_s > self._abandon_s:
                reader.abandoned = True
                text = f"given up: a read has not returned for {late_s:.1f} s"
                events.append(EventLine(kind="lost", mono_ns=now_ns, text=text, uuid=reader.uuid))
            elif late_s > self._gap_s and self._reported.get(reader.uuid) != since_ns:
                self._reported[reader.uuid] = since_ns
                text = f"a read has not returned for {late_s:.1f} s"
                events.append(EventLine(kind="gap", mono_ns=now_ns, text=text, uuid=reader.uuid))
        return events


class TraceFile:
    """Appends whole lines to a file that no one else has. Raises `HarnessError` when it cannot."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise HarnessError(f"telemetry file {path} cannot be created: {error.strerror}") from None
        self._path = path
        self._pending = bytearray()
        self.size = 0
        self.samples = 0

    def add(self, line: Line) -> None:
        encoded = msgspec.json.encode(line) + b"\n"
        self._pending += encoded
        self.size += len(encoded)
        self.samples += isinstance(line, SampleLine)

    def flush(self) -> None:
        while self._pending:
            try:
                written = os.write(self._fd, self._pending)
            except OSError as error:
                raise HarnessError(f"telemetry file {self._path} cannot be written: {error.strerror}") from None
            del self._pending[:written]


def sample(config: SamplerConfig, source: TelemetrySource, inbox: Inbox, on_ready: Callable[[], None]) -> Stop:
    """Sample until a `Stop` arrives in `inbox`, or nothing more can be written: then raises `HarnessError`."""
    devices = source.devices()
    file = TraceFile(Path(config.path))
    file.add(_meta(config, source))
    for device in devices:
        file.add(device)
    file.add(_anchor())
    file.flush()
    readers = [DeviceReader(source, device, config, inbox) for device in devices]
    for reader in readers:
        reader.start()
    stop = _collect(file, inbox, readers, config, on_ready)
    file.add(_anchor())
    file.add(EndLine(mono_ns=time.monotonic_ns(), samples=file.samples, cpu_s=time.process_time(), reason=stop.reason))
    file.flush()
    return stop


def _collect(
    file: TraceFile, inbox: Inbox, readers: list[DeviceReader], config: SamplerConfig, on_ready: Callable[[], None]
) -> Stop:
    """Bring lines from the readers to the file, and look after readers, parent, clock and size meanwhile."""
    watchdog = Watchdog(readers, config.gap_s, config.abandon_s)
    unseen = {reader.uuid for reader in readers}
    flush_at = time.monotonic() + FLUSH_S
    anchor_at = time.monotonic() + ANCHOR_S
    check_at = 0.0
    while True:
        try:
            item = inbox.get(timeout=_HOUSEKEEPING_S)
        except queue.Empty:
            item = None
        if isinstance(item, Stop):
            return _drain(file, inbox, item)
        if item is not None:
            file.add(item)
            if isinstance(item, SampleLine) and unseen:
                unseen.discard(item.uuid)
                if not unseen:
                    file.flush()
                    on_ready()
            if unseen and isinstance(item, EventLine) and item.kind in ("lost", "error"):
                return Stop(f"{item.uuid} gave no sample: {item.text}", ok=False)
        now = time.monotonic()
        if now >= check_at:
            check_at = now + _HOUSEKEEPING_S
            for event in watchdog.check(time.monotonic_ns()):
                inbox.put(event)
            if config.parent_pid is not None and os.getppid() != config.parent_pid:
                inbox.put(Stop("the parent process ended"))
            if file.size > config.max_bytes:
                return Stop(f"the file reached its limit of {config.max_bytes} bytes", ok=False)
        if now >= anchor_at:
            anchor_at = now + ANCHOR_S
            file.add(_anchor())
        if now >= flush_at:
            flush_at = now + FLUSH_S
            file.flush()


def _drain(file: TraceFile, inbox: Inbox, stop: Stop) -> Stop:
    """What the readers had delivered by the time of the stop belongs to the record too."""
    while True:
        try:
            item = inbox.get_nowait()
        except queue.Empty:
            return stop
        if not isinstance(item, Stop):
            file.add(item)


def _meta(config: SamplerConfig, source: TelemetrySource) -> Meta:
    return Meta(
        source=source.name,
        host=socket.gethostname(),
        period_s=config.period_s,
        pid=os.getpid(),
        mono_ns=time.monotonic_ns(),
        wall_s=time.time(),
        library=source.library,
        driver=source.driver,
    )


def _anchor() -> EventLine:
    """One instant on both clocks: shows later where wall time was stepped."""
    return EventLine(kind="anchor", mono_ns=time.monotonic_ns(), wall_s=time.time(), text="")


def _watch_stdin(inbox: Inbox) -> None:
    while os.read(0, 4096):
        pass
    inbox.put(Stop("stdin closed"))


def main(argv: list[str]) -> int:
    out = claim_stdout()
    die_with_parent(signal.SIGTERM)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_watch_stdin, args=(inbox,), daemon=True).start()
    try:
        config = from_json(Path(argv[0]).read_bytes(), SamplerConfig, argv[0])
        source = open_source(config.source, config.uuids)
        # Only now: a handler of ours would never run while this thread hangs in a driver, the default action does.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, _: inbox.put(Stop(signal.Signals(signum).name)))
        stop = sample(config, source, inbox, lambda: _say_ready(out))
    except (CharllmError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if not stop.ok:
        print(f"sampling ended: {stop.reason}", file=sys.stderr)
    return 0 if stop.ok else 1


def _say_ready(out: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the client is gone: stdin tells so too
        os.write(out, READY)
    os.close(out)


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
    sys.stderr.flush()
    # At once: the interpreter's own way out may wait for a reader that hangs in the driver.
    os._exit(code)
