"""The sampler process: one a node, sampling before any rank has work, reading each device in a thread of its own.

``python -m pytest_charllm.telemetry CONFIG.json`` writes JSON lines until its stdin closes, its parent ends, or
it is told to stop by SIGTERM or SIGINT. Lines on its stdin announce where a measurement begins or ends (`dense`), or
close the trace and ask for another one (`config`). It loads no training framework and changes no device's settings.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from pytest_charllm.devices.open import open_source
from pytest_charllm.devices.process import claim_stdout, die_with_parent
from pytest_charllm.devices.source import TelemetrySource
from pytest_charllm.errors import BadInput, CharllmError
from pytest_charllm.records.base import from_json
from pytest_charllm.records.telemetry import DeviceLine, EndLine, EventLine, Meta, SampleLine
from pytest_charllm.telemetry.clocks import Instant, discontinuities
from pytest_charllm.telemetry.config import CLOSE, CLOSED, READY, SamplerConfig, recorded_by
from pytest_charllm.telemetry.dense import Kind, Span, Spans, parse
from pytest_charllm.telemetry.device_reader import DeviceReader, Watchdog
from pytest_charllm.telemetry.inbox import Inbox, NextTrace, ReaderLine, Stop
from pytest_charllm.telemetry.trace_file import TraceFile

ROUND_S = 1.0
"""Between two looks after all else, and two flushes of the file."""
ANCHOR_S = 10.0
_LAST_WORDS_S = 1.0
"""How long the readers have for their last pass and snapshot."""
_EVENT_WAIT_S = 5.0
_IDLE_S = 1.0
LEFT_OUT = "left out by who started the sampler: nothing will be asked of it"


class Sampling:
    """Readers, file and clocks of one recording. `before`: the one before it in this process, whose CPU time is not
    its own, and whose readers know the beats of their devices."""

    def __init__(
        self, config: SamplerConfig, source: TelemetrySource, inbox: Inbox, before: Sampling | None = None
    ) -> None:
        self._config, self._inbox = config, inbox
        self._since_s = 0.0 if before is None else time.process_time()
        beats = {} if before is None else {reader.uuid: reader.beat for reader in before._readers}
        self._spans = Spans()
        devices = [_without(device, config.without) for device in source.devices()]
        self._file = TraceFile(config.path)
        self._file.add(_meta(config, source))
        for device in devices:
            self._file.add(device)
        self._clocks = Instant.now()
        self._file.add(self._clocks.anchor())
        self._file.flush()
        self._readers: list[DeviceReader] = [
            DeviceReader(source, device, config, self._spans, inbox, beats.get(device.uuid)) for device in devices
        ]
        self._watchdog = Watchdog(self._readers, config.gap_s, config.abandon_s)
        self._unseen = {reader.uuid for reader in self._readers}

    def run(self, on_ready: Callable[[], None]) -> Stop:
        """Sample until a `Stop` arrives, or nothing more can be written: then raises `HarnessError`."""
        for reader in self._readers:
            reader.start()
        stop = self._collect(on_ready)
        self._last_words()
        self._file.add(Instant.now().anchor())
        self._file.add(
            EndLine(
                mono_ns=time.monotonic_ns(),
                samples=self._file.samples,
                cpu_s=time.process_time() - self._since_s,
                reason=stop.reason,
                pace={reader.uuid: pace for reader in self._readers if (pace := reader.pace()) is not None},
            )
        )
        self._file.close()
        return stop

    @property
    def went_well(self) -> bool:
        """Whether every device was read to the end, so that the driver may be asked again as it is."""
        return all(reader.came_back and not reader.is_alive() for reader in self._readers)

    def _collect(self, on_ready: Callable[[], None]) -> Stop:
        """Bring lines from the readers to the file, and look after readers, parent, clocks and size meanwhile."""
        now = time.monotonic()
        round_at, anchor_at = now, now + ANCHOR_S
        while True:
            order = self._inbox.wait(round_at - now)
            for line in self._inbox.lines():
                self._file.add(line)
                if self._unseen:
                    failure = self._first_of(line, on_ready)
                    if failure is not None:
                        return failure
            if isinstance(order, Stop):
                return order
            if isinstance(order, Span):
                self._announced(order)
            now = time.monotonic()
            if now >= round_at:
                round_at = now + ROUND_S
                self._check()
                if now >= anchor_at:
                    anchor_at = now + ANCHOR_S
                    self._file.add(self._clocks.anchor())
                self._file.flush()
                if self._file.size > self._config.max_bytes:
                    return Stop(f"the file reached its limit of {self._config.max_bytes} bytes", ok=False)

    def _announced(self, span: Span) -> None:
        now_ns = time.monotonic_ns()
        was = self._spans.at(now_ns)
        at_once = self._spans.add(span, now_ns)
        if (was, span.kind) != (Kind.NEAR, Kind.NEAR):  # each group of warm-up steps says so anew
            kind, text = _told(span, self._config)
            self._file.add(EventLine(kind=kind, mono_ns=span.begin_ns, text=text))
        if span.kind is Kind.LAST:
            for reader in self._readers:
                reader.owe()
        if at_once:
            for reader in self._readers:
                reader.wake()

    def _first_of(self, line: ReaderLine, on_ready: Callable[[], None]) -> Stop | None:
        """Say so once each device has given a sample; a device that never does ends it all."""
        if isinstance(line, SampleLine):
            self._unseen.discard(line.uuid)
            if not self._unseen:
                self._file.flush()
                on_ready()
        elif isinstance(line, EventLine) and line.kind in ("lost", "error") and line.uuid in self._unseen:
            return Stop(f"{line.uuid} gave no sample: {line.text}", ok=False)
        return None

    def _check(self) -> None:
        before, self._clocks = self._clocks, Instant.now()
        for event in (*discontinuities(before, self._clocks), *self._watchdog.check(self._clocks.mono_ns)):
            self._inbox.put(event)
        if self._config.parent_pid is not None and os.getppid() != self._config.parent_pid:
            self._inbox.order(Stop("the parent process ended"))

    def _last_words(self) -> None:
        """A last look at the clocks, and a last pass and snapshot of each device, as far as they come in time."""
        self._check()
        for reader in self._readers:
            reader.stop()
        deadline = time.monotonic() + _LAST_WORDS_S
        for reader in self._readers:
            if not reader.abandoned:
                reader.join(max(0.0, deadline - time.monotonic()))
                if reader.is_alive():
                    text = "its last read had not returned when sampling ended"
                    self._file.add(EventLine(kind="gap", mono_ns=time.monotonic_ns(), text=text, uuid=reader.uuid))
        for line in self._inbox.lines():
            self._file.add(line)


def _without(device: DeviceLine, quantities: tuple[str, ...]) -> DeviceLine:
    left_out = {each: LEFT_OUT for each in quantities if device.capabilities.get(each) == "ok"}
    return replace(device, capabilities={**device.capabilities, **left_out})


def _told(span: Span, config: SamplerConfig) -> tuple[str, str]:
    """Kind and text of the event that has an announcement on record."""
    seconds = f"{(span.end_ns - span.begin_ns) / 1e9:.2f} s"
    if span.kind is Kind.REST:
        return "rest", (
            f"a pass every {config.rest_period_s:g} s and slow quantities every {config.rest_slow_period_s:g} s, "
            f"until told otherwise, for {seconds} at most"
        )
    if span.kind is Kind.NEAR:
        return "near", (
            f"a pass every {config.near_period_s:g} s and slow quantities every {config.near_slow_period_s:g} s, "
            f"until told otherwise, for {seconds} at most"
        )
    return "dense", f"energy and bytes over links at every pass, for {seconds}"


def _meta(config: SamplerConfig, source: TelemetrySource) -> Meta:
    return Meta(
        source=source.name,
        host=os.uname().nodename,
        period_s=config.period_s,
        pid=os.getpid(),
        mono_ns=time.monotonic_ns(),
        wall_s=time.time(),
        library=source.library,
        driver=source.driver,
        slow_period_s=config.slow_period_s,
    )


def _watch_stdin(inbox: Inbox) -> None:
    pending = b""
    while said := os.read(0, 4096):
        *lines, pending = (pending + said).split(b"\n")
        for line in lines:
            if line + b"\n" == CLOSE:
                inbox.order(Stop("told to", stays=True))
            elif (config := recorded_by(line)) is not None:
                inbox.order(NextTrace(config))
            elif (span := parse(line)) is not None:
                inbox.order(span)
    inbox.order(Stop("stdin closed"))


def _watch_events(source: TelemetrySource, inbox: Inbox, deaf: threading.Event) -> None:
    """`deaf` once it hears no more of what it heard before."""
    try:
        while (events := source.wait_events(_EVENT_WAIT_S)) is not None:
            for event in events:
                inbox.put(event)
                if event.kind == "error":
                    deaf.set()
    except Exception as error:
        deaf.set()
        text = f"{type(error).__name__}: {error}; errors that the driver reports are not seen any more"
        inbox.put(EventLine(kind="error", mono_ns=time.monotonic_ns(), text=text))


def main(argv: list[str]) -> int:
    out = claim_stdout()
    die_with_parent(signal.SIGTERM)
    inbox = Inbox()
    threading.Thread(target=_watch_stdin, args=(inbox,), daemon=True).start()
    try:
        config = _read(argv[0])
        source = open_source(config.source, config.uuids)
        # Only now: a handler of ours would never run while this thread hangs in a driver, the default action does.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, _: inbox.order(Stop(signal.Signals(signum).name)))
        gc.freeze()  # what is here by now stays, and is not looked through again
        gc.enable()
        deaf = threading.Event()
        threading.Thread(target=_watch_events, args=(source, inbox, deaf), daemon=True).start()
        stop = _record(config, source, inbox, out, deaf)
    except (CharllmError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if not stop.ok:
        print(f"sampling ended: {stop.reason}", file=sys.stderr)
    return 0 if stop.ok else 1


def _record(config: SamplerConfig, source: TelemetrySource, inbox: Inbox, out: int, deaf: threading.Event) -> Stop:
    """One recording after the other, until an order ends more than one, or the driver is to be opened anew."""
    sampling: Sampling | None = None
    while True:
        sampling = Sampling(config, source, inbox, sampling)
        stop = sampling.run(lambda: _say(out, READY))
        if not stop.stays or not sampling.went_well or deaf.is_set():
            return stop
        _say(out, CLOSED)
        order = _next(inbox, config)
        if isinstance(order, Stop):
            return order
        if deaf.is_set():  # the client starts another one where this one ends
            return stop
        before, config = config, _read(order.config)
        if (config.source, config.uuids) != (before.source, before.uuids):
            raise BadInput(f"{order.config}: not of the devices that this sampler reads; start another one")


def _next(inbox: Inbox, config: SamplerConfig) -> NextTrace | Stop:
    """What is asked for between two recordings. What is announced or reported meanwhile belongs to neither."""
    while True:
        order = inbox.wait(_IDLE_S)
        for _ in inbox.lines():
            pass
        if isinstance(order, NextTrace) or (isinstance(order, Stop) and not order.stays):
            return order
        if config.parent_pid is not None and os.getppid() != config.parent_pid:
            return Stop("the parent process ended")


def _read(path: str) -> SamplerConfig:
    with open(path, "rb") as file:
        return from_json(file.read(), SamplerConfig, path)


def _say(out: int, word: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the client is gone: stdin tells so too
        os.write(out, word)
