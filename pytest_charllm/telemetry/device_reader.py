"""One thread a physical device, and the watchdog over all of them."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from typing import TypeVar, TypeVarTuple

from pytest_charllm.devices.process import descends
from pytest_charllm.devices.source import DeviceLostError, TelemetrySource
from pytest_charllm.records.telemetry import DeviceLine, DevicePace, EventLine
from pytest_charllm.telemetry.beat import Beat
from pytest_charllm.telemetry.config import SamplerConfig
from pytest_charllm.telemetry.dense import Kind, Spans
from pytest_charllm.telemetry.inbox import Inbox, ReaderLine
from pytest_charllm.telemetry.pace import BUSY_SHARE, Pace

_LOOK_AFTER = 1.5
"""Who computes on a device is looked up so many slow periods after the last look, at every other pass over all, and at
the next one where somebody was seen."""
_SETTLED_S = 1.0
"""As a warm-up begins, ranks allocate, and a dear read waits for that: 9 to 14 ms on an H200. It is due after this."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_AT_EDGES = frozenset({"energy_j", "package_energy_j", "link_tx_kib"})
"""What runs at full speed on one side of an edge and hardly on the other: joules, and what goes over links. The causes
of throttling do not set in just there, so for them it is enough to be read once a second there as well."""


class DeviceReader(threading.Thread):
    """Reads one device at its pace. The driver may hold it for ever, so it is a daemon and its owner watches it.

    A pass reads what is cheap, and once in `config.slow_period_s` all. In a dense span every pass reads `_AT_EDGES`
    too. In a rest, and where a window is near, there are fewer passes of either sort. `beat`: what an earlier reader
    learnt of this device.
    """

    def __init__(
        self,
        source: TelemetrySource,
        device: DeviceLine,
        config: SamplerConfig,
        spans: Spans,
        inbox: Inbox,
        beat: Beat | None = None,
    ) -> None:
        super().__init__(name=f"reader {device.uuid}", daemon=True)
        self._source, self.uuid, self._spans, self._inbox = source, device.uuid, spans, inbox
        self._all = frozenset(quantity for quantity, answer in device.capabilities.items() if answer == "ok")
        self._fast = self._all.difference(device.slow)
        self._dense = self._fast | (self._all & _AT_EDGES)
        self._waits = self._dense - self._fast
        """What waits in the driver while the device is at its own work: the dear ones of the edges."""
        self._config = config
        self._at_least_s: dict[Kind | None, float] = {Kind.REST: config.rest_period_s, Kind.NEAR: config.near_period_s}
        self._slow_after_s: dict[Kind | None, float] = {
            Kind.REST: config.rest_slow_period_s,
            Kind.NEAR: config.near_slow_period_s,
        }
        self._slow_at_ns: int | None = None
        self._kind: Kind | None = None
        self._kind_since_ns = 0
        self._owed = False
        self._pace = Pace(
            period_s=config.period_s,
            jitter_s=config.jitter_s,
            seed=f"{config.seed}/{device.uuid}",
            start_ns=time.monotonic_ns(),
        )
        self.beat = Beat() if beat is None else beat
        self._latencies_ns = array("q")
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._stopping = False
        self._ours = config.ours_pid
        self._known: set[int] = set()
        """Processes on the device that are ours."""
        self._looked_at_ns: int | None = None
        self._seen_once: set[int] = set()
        self._told: set[int] = set()
        self.reading_since_ns: int | None = None
        self.abandoned = False
        self.came_back = False
        """From its last pass and snapshot."""

    def wake(self) -> None:
        """Look anew when to read next: at once where an edge is near, else on a tick that is sooner than in a rest."""
        with contextlib.suppress(RuntimeError):  # woken already: one pass will do for both
            self._asleep.release()

    def owe(self) -> None:
        """A window has ended: all is read once more when the close look at its end is over, and if there was none."""
        self._owed = True

    def stop(self) -> None:
        """One last pass and snapshot, then end."""
        self._stopping = True
        self.wake()

    def pace(self) -> DevicePace | None:
        """How it went so far; None without a single pass."""
        latencies = sorted(self._latencies_ns)
        if not latencies:
            return None
        return DevicePace(
            passes=len(latencies),
            period_s=self._pace.period_s,
            latency_p50_ns=latencies[len(latencies) // 2],
            latency_p95_ns=latencies[int(0.95 * (len(latencies) - 1))],
            latency_max_ns=latencies[-1],
        )

    def run(self) -> None:
        try:
            self._snapshot("start")
            self._pass()
            self._inbox.hurry()  # whoever started the sampler waits for this
            while not self._stopping:
                now_ns = time.monotonic_ns()
                at_least_s = 0.0 if self._owed else self._at_least_s.get(self._spans.at(now_ns), 0.0)
                if self._woken(self._pace.wait_s(now_ns, at_least_s)):
                    self._pace.take_back()
                    if self._stopping or self._spans.at(time.monotonic_ns()) is not Kind.DENSE:
                        continue  # the next tick is soon enough
                self._pass()
            self._pass(is_last=True)
            self._snapshot("end")
            self.came_back = True
        except DeviceLostError as lost:
            self._event("lost", str(lost))
        except Exception as error:
            self._event("error", f"{type(error).__name__}: {error}; this device is read no more")

    def _woken(self, timeout_s: float) -> bool:
        """Whether it was woken within so long. A bare lock: anything built on one costs more than the wait itself."""
        return self._asleep.acquire(timeout=timeout_s)

    def _pass(self, is_last: bool = False) -> None:
        now_ns = time.monotonic_ns()
        kind = self._spans.at(now_ns)
        if kind is not self._kind:
            self._kind, self._kind_since_ns = kind, now_ns
        is_slow = self._slow_is_due(now_ns, kind, is_last)
        is_judged = self._owed or kind not in self._at_least_s
        wanted = self._all if is_slow else self._dense if kind is Kind.DENSE else self._fast
        if is_slow:
            self._slow_at_ns, self._owed = now_ns, self._owed and kind is Kind.DENSE
        may_wait = bool(wanted & self._waits)
        if may_wait and (hold_ns := self.beat.hold_ns(now_ns)):
            time.sleep(hold_ns / 1e9)
        sample = self._watched(self._source.read, self.uuid, wanted)
        self._put(sample)
        self._latencies_ns.append(sample.latency_ns)
        if may_wait and not sample.missing:  # what is refused comes sooner than any answer
            self.beat.learn(is_slow, sample.latency_ns, sample.mono_ns + sample.latency_ns // 2)
        if is_slow:
            ring = self._watched(self._source.power_ring, self.uuid) if is_judged else None
            if ring is not None:
                self._put(ring)
            self._look_for_strangers(now_ns)
        if self._pace.too_slow(sample.latency_ns):
            busy = f"passes take over {100 * BUSY_SHARE:g} % of the period"
            self._event("slowed", f"{busy}, which is now {self._pace.period_s:g} s")

    def _slow_is_due(self, now_ns: int, kind: Kind | None, is_last: bool) -> bool:
        if self._slow_at_ns is None or (self._owed and kind is not Kind.DENSE):
            return True
        if is_last and kind is not Kind.REST:
            return True
        if kind is Kind.NEAR and (now_ns - self._kind_since_ns) / 1e9 < _SETTLED_S:
            return False
        return (now_ns - self._slow_at_ns) / 1e9 >= self._slow_after_s.get(kind, self._config.slow_period_s)

    def _look_for_strangers(self, now_ns: int) -> None:
        """Somebody else's process in two looks in a row: one that is seen once may be about to end, or to be ours."""
        if self._ours is None:
            return
        after_ns = _LOOK_AFTER * self._config.slow_period_s * 1e9
        is_due = self._looked_at_ns is None or now_ns - self._looked_at_ns >= after_ns
        if not (is_due or self._seen_once):
            return
        self._looked_at_ns = now_ns
        pids = set(self._watched(self._source.processes, self.uuid))
        self._known &= pids
        found = {pid: descends(pid, self._ours) for pid in pids - self._known}
        self._known |= {pid for pid, is_ours in found.items() if is_ours}
        strange = {pid for pid, is_ours in found.items() if is_ours is False}
        for pid in sorted((strange & self._seen_once) - self._told):
            self._event("processes", f"pid {pid} computes on this device and is none of ours")
            self._told.add(pid)
        self._seen_once = strange

    def _snapshot(self, when: str) -> None:
        """Never at the cost of the samples: what cannot be told is an event."""
        try:
            self._put(self._watched(self._source.snapshot, self.uuid, when))
        except DeviceLostError:
            raise
        except Exception as error:
            self._event("error", f"no snapshot at the {when}: {type(error).__name__}: {error}")

    def _watched(self, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """What `read` answers, under the eyes of the watchdog."""
        self.reading_since_ns = time.monotonic_ns()
        try:
            return read(*args)
        finally:
            self.reading_since_ns = None

    def _put(self, line: ReaderLine) -> None:
        if not self.abandoned:
            self._inbox.put(line)

    def _event(self, kind: str, text: str) -> None:
        self._put(EventLine(kind=kind, mono_ns=time.monotonic_ns(), text=text, uuid=self.uuid))
        self._inbox.hurry()


class Watchdog:
    """Notices reads that do not return: a gap on record first, then the device is given up."""

    def __init__(self, readers: Iterable[DeviceReader], gap_s: float, abandon_s: float) -> None:
        self._readers = tuple(readers)
        self._gap_s, self._abandon_s = gap_s, abandon_s
        self._reported: dict[str, int] = {}

    def check(self, now_ns: int) -> list[EventLine]:
        events = []
        for reader in self._readers:
            since_ns = reader.reading_since_ns
            if since_ns is None or reader.abandoned:
                continue
            late_s = (now_ns - since_ns) / 1e9
            if late_s > self._gap_s and self._reported.get(reader.uuid) != since_ns:
                self._reported[reader.uuid] = since_ns
                text = f"a read has not returned for {late_s:.1f} s"
                events.append(EventLine(kind="gap", mono_ns=now_ns, text=text, uuid=reader.uuid))
            if late_s > self._abandon_s:
                reader.abandoned = True
                text = f"given up: a read has not returned for {late_s:.1f} s"
                events.append(EventLine(kind="lost", mono_ns=now_ns, text=text, uuid=reader.uuid))
        return events
