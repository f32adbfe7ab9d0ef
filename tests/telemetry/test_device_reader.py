"""What each pass over a device reads: every read that is left out is CPU time saved, or a metric lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from itertools import pairwise
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.devices.source import WithoutExtras
from pytest_charllm.records.telemetry import DeviceLine, EventLine, SampleLine, SnapshotLine
from pytest_charllm.telemetry import device_reader, sampler
from pytest_charllm.telemetry.clocks import Instant
from pytest_charllm.telemetry.config import SamplerConfig
from pytest_charllm.telemetry.dense import Kind, Span, Spans
from pytest_charllm.telemetry.device_reader import DeviceReader
from pytest_charllm.telemetry.inbox import Inbox, Stop
from pytest_charllm.telemetry.reader import read_trace
from pytest_charllm.telemetry.sampler import Sampling

S = 1_000_000_000
MS = 1_000_000
DEAR = {"energy_j", "margin_c", "throttle_hw_thermal_ns", "link_tx_kib"}
AT_EDGES = {"energy_j", "link_tx_kib"}
LINE = DeviceLine(
    uuid="GPU-a",
    name="made up",
    capabilities=dict.fromkeys((*DEAR, "power_instant_w"), "ok") | {"hbm_temp_c": "no sensor"},
    slow=tuple(sorted(DEAR)),
)


class Asked(WithoutExtras):
    """Remembers when it was asked for what, in seconds."""

    name, library, driver = "asked", None, None

    def __init__(self, now: SimpleNamespace) -> None:
        self._now = now
        self.passes: list[tuple[float, frozenset[str]]] = []
        self.looks = 0
        self.pids: tuple[int, ...] | Callable[[int], tuple[int, ...]] = ()
        self.refuses = False
        self.events: list[EventLine] = []
        self.rings: list[float] = []
        self.busy_s: float | None = None
        self.waits_ms: list[float] = []

    def devices(self) -> tuple[DeviceLine, ...]:
        return (LINE,)

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        self.passes.append((self._now.ns / S, frozenset(wanted)))
        latency_ns = 1000
        if self.busy_s is not None and DEAR & set(wanted):
            into_ns = round(self._now.ns - self.busy_s * S) % (S // 10)
            waits_ns = max(0, (15 if into_ns < S // 50 else 5) * MS - into_ns % (S // 50))
            self.waits_ms.append(waits_ns / MS)
            latency_ns = 4 * MS + waits_ns
            self._now.ns += latency_ns
        return SampleLine(
            uuid=uuid,
            mono_ns=self._now.ns - latency_ns // 2,
            latency_ns=latency_ns,
            values=dict.fromkeys(wanted, 1.0),
            missing=dict.fromkeys(wanted, "refused") if self.refuses else {},
        )

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        return SnapshotLine(uuid=uuid, when=when, mono_ns=self._now.ns, values={})

    def power_ring(self, uuid: str) -> None:
        self.rings.append(self._now.ns / S)

    def processes(self, uuid: str) -> tuple[int, ...]:
        self.looks += 1
        return self.pids(self.looks) if callable(self.pids) else self.pids


@pytest.fixture
def sampled(monkeypatch):
    """Runs a reader on a made-up clock: every wait takes just as long as it was asked for, and a dear read 4 ms, longer
    if it has to wait for what the device does itself, for 5 ms of each 20 ms, which from `busy_s` on is 15 ms of each
    100 ms."""

    def run(
        seconds: float,
        announced: dict[float, Span],
        busy_s: float | None = None,
        pids: tuple[int, ...] | Callable[[int], tuple[int, ...]] = (),
    ) -> Asked:
        now = SimpleNamespace(ns=0)

        def sleep(seconds: float) -> None:
            now.ns += round(seconds * S)

        monkeypatch.setattr(device_reader, "time", SimpleNamespace(monotonic_ns=lambda: now.ns, sleep=sleep))
        source, spans = Asked(now), Spans()
        source.busy_s, source.pids, inbox = busy_s, pids, Inbox()
        reader = DeviceReader(source, LINE, SamplerConfig(path="", source="asked", ours_pid=os.getpid()), spans, inbox)
        left = sorted(announced.items())

        def woken(timeout_s: float) -> bool:
            due_ns = now.ns + round(timeout_s * S)
            while left and left[0][0] * S <= due_ns:
                at_s, span = left.pop(0)
                now.ns = round(at_s * S)
                if span.kind is Kind.LAST:
                    reader.owe()
                if spans.add(span, now.ns):
                    return True
            now.ns = due_ns
            if now.ns >= seconds * S:
                reader.stop()
                return True
            return False

        monkeypatch.setattr(reader, "_woken", woken)
        reader.run()
        source.events = [line for line in inbox.lines() if isinstance(line, EventLine)]
        return source

    return run


def span(begin_s: float, end_s: float, kind: Kind = Kind.DENSE) -> Span:
    return Span(round(begin_s * S), round(end_s * S), kind)


def test_without_a_word_all_is_read_once_a_second(sampled):
    """A launcher that announces nothing, and a script whose window is known afterwards, lose no reading."""
    passes = sampled(10.0, {}).passes
    full = [at_s for at_s, wanted in passes if wanted >= DEAR]
    assert 99 <= len(passes) <= 102
    assert 10 <= len(full) <= 12
    assert max(late - early for early, late in pairwise(full)) < 1.15
    assert {wanted for _, wanted in passes} == {frozenset({"power_instant_w"}), frozenset({"power_instant_w", *DEAR})}


def test_a_close_look_reads_energy_and_links(sampled):
    """Margin and causes of throttling at every pass of an edge were a fifth of what the sampler cost: they keep to
    their second."""
    passes = sampled(6.0, {0.5: span(1.7, 2.7)}).passes
    close = [wanted for at_s, wanted in passes if 1.7 <= at_s < 2.7]
    assert 9 <= len(close) <= 11
    assert all("energy_j" in wanted for wanted in close)
    assert sum(wanted & DEAR == AT_EDGES for wanted in close) >= len(close) - 1
    full = [at_s for at_s, wanted in passes if wanted >= DEAR]
    assert max(late - early for early, late in pairwise(full)) < 1.15


def test_all_is_read_between_a_close_look_and_a_rest(sampled):
    """The end of a window lies before it, and nothing dear is read for long after it, nor as the trace ends."""
    passes = sampled(6.0, {2.0: span(2.0, 2.2, Kind.LAST), 2.01: span(2.2, 120.0, Kind.REST)}).passes
    after = [(at_s, wanted) for at_s, wanted in passes if at_s >= 2.2]
    assert after[0][1] >= DEAR
    assert after[0][0] < 2.4
    assert not any(wanted >= DEAR for _, wanted in after[1:])


@pytest.mark.parametrize("stops_s", [3.15, 3.25, 3.301, 3.35, 3.75])
def test_the_last_pass_reads_all_where_something_may_be_judged(sampled, stops_s):
    """A script's window may end as the trace does, and a rank's after the first one that told of it: of such ends 20 to
    40 % had no counter read after them, when the last pass left out what had just been read."""
    assert sampled(stops_s, {}).passes[-1][1] >= DEAR
    assert sampled(stops_s, {2.0: span(2.0, 60.0, Kind.NEAR)}).passes[-1][1] >= DEAR
    last = {3.1: span(3.1, 3.3, Kind.LAST), 3.101: span(3.3, 120.0, Kind.REST)}
    passes = sampled(stops_s, last).passes
    assert [at_s for at_s, wanted in passes if wanted >= DEAR and at_s >= min(stops_s, 3.3)]


def test_dear_reads_keep_clear_of_what_the_device_does_itself(sampled):
    """Each one that meets an H200's own work waits for its end, 2.2 ms on the mean, all of it CPU time."""
    by_phase = [sampled(60.0, {}, busy_s=busy_s).waits_ms for busy_s in (0.0, 0.013, 0.04, 0.067, 0.09)]
    assert all(56 <= len(waits_ms) <= 62 for waits_ms in by_phase)
    assert sum(sum(waits_ms[20:]) for waits_ms in by_phase) < 5 * 38 * 0.3


def test_at_an_edge_as_well_and_what_is_cheap_is_never_put_off(sampled):
    """Half of the dear reads of a launch lie at edges."""
    source = sampled(40.0, {20.0: span(20.0, 39.0)}, busy_s=0.013)
    close = [wanted & DEAR == AT_EDGES for _, wanted in source.passes if wanted & DEAR]
    waits_ms = [wait for wait, is_close in zip(source.waits_ms, close, strict=True) if is_close]
    assert len(waits_ms) > 150
    assert sum(waits_ms[30:]) < 0.3 * len(waits_ms)
    off_grid = [abs(at_s * 10 - round(at_s * 10)) / 10 for at_s, wanted in source.passes if not wanted & DEAR]
    assert max(off_grid) < 0.0202


class Habit:
    """A beat that puts everything off by 20 ms, and remembers what it was taught."""

    def __init__(self) -> None:
        self.taught: list[tuple[bool, int, int]] = []

    def hold_ns(self, now_ns: int) -> int:
        return 20 * MS

    def learn(self, over_all: bool, latency_ns: int, end_ns: int) -> None:
        self.taught.append((over_all, latency_ns, end_ns))


def test_what_a_pass_teaches(monkeypatch):
    """By its sort, how long it took and when it was done; nothing where reads do not wait, or were refused at once."""
    now, slept, habit = SimpleNamespace(ns=S), list[float](), Habit()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        reader.wake()

    monkeypatch.setattr(device_reader, "time", SimpleNamespace(monotonic_ns=lambda: now.ns, sleep=sleep))
    source, spans = Asked(now), Spans()
    source.busy_s = 0.05
    line = replace(LINE, capabilities=LINE.capabilities | {"core_temp_c": "ok"}, slow=(*LINE.slow, "core_temp_c"))
    reader = DeviceReader(source, line, SamplerConfig(path="", source="asked"), spans, Inbox(), habit)
    reader._pass()
    assert habit.taught == [(True, 4 * MS, now.ns)]
    assert reader._woken(0.0)  # what was announced while the pass was put off is not lost
    reader._pass()
    spans.add(span(0, 100.0), now.ns)
    reader._pass()
    assert habit.taught[1:] == [(False, 4 * MS, now.ns)]
    assert slept == [0.02, 0.02]
    source.refuses = True
    reader._pass()
    assert len(habit.taught) == 2


def test_what_is_slow_but_does_not_wait_is_not_put_off(monkeypatch):
    """AMD's energy is cheap to read and its limit is slow: holding whole passes for that alone is lost coverage."""
    line = replace(LINE, capabilities=dict.fromkeys(("energy_j", "power_limit_w"), "ok"), slow=("power_limit_w",))
    habit = Habit()
    monkeypatch.setattr(device_reader.time, "sleep", None)
    reader = DeviceReader(
        Asked(SimpleNamespace(ns=0)), line, SamplerConfig(path="", source="asked"), Spans(), Inbox(), habit
    )
    reader._pass()
    assert habit.taught == []


def test_an_edge_is_read_at_once_and_what_is_only_near_on_the_grid(sampled):
    """Where load begins, energy is a straight line from the reading before, which must not lie 3 s back. What is only
    near is in no such haste."""
    announced = {0.1: span(1.0, 120.0, Kind.REST), 7.03: span(7.03, 120.0, Kind.NEAR), 12.05: span(12.05, 12.5)}
    passes = sampled(14.0, announced).passes
    assert 12.05 in [at_s for at_s, wanted in passes if "energy_j" in wanted]
    first = min(at_s for at_s, _ in passes if at_s >= 7.03)
    assert 7.03 < first < 7.25
    assert min(abs(first - tick / 10) for tick in range(140)) <= 0.0201


def test_the_next_recording_knows_the_beat_from_the_one_before(tmp_path):
    """What a kept sampler learnt of a device's own rhythm serves the launches after."""
    source, inbox = Asked(SimpleNamespace(ns=0)), Inbox()
    first = Sampling(SamplerConfig(path=str(tmp_path / "1"), source="asked"), source, inbox)
    again = Sampling(SamplerConfig(path=str(tmp_path / "2"), source="asked"), source, inbox, first)
    assert again._readers[0].beat is first._readers[0].beat
    apart = Sampling(SamplerConfig(path=str(tmp_path / "3"), source="asked"), source, inbox)
    assert apart._readers[0].beat is not first._readers[0].beat


def test_what_woke_a_reader_twice_wants_one_pass():
    """Two edges told of during one long read are both behind it."""
    reader = DeviceReader(Asked(SimpleNamespace(ns=0)), LINE, SamplerConfig(path="", source="asked"), Spans(), Inbox())
    for _ in range(3):
        reader.wake()
    assert reader._woken(0.0)
    assert not reader._woken(0.0)


def test_the_drivers_own_record_of_power_covers_the_window_alone(sampled):
    """Fetching it takes as long as three passes of the fast tier, new readings or not. It holds 2.4 s on an H200, so at
    the beginning of a window it reaches back far enough, and its end must be fetched though a rest has begun."""
    announced = {
        0.1: span(0.95, 120.0, Kind.REST),
        11.5: span(11.5, 130.0, Kind.NEAR),
        16.2: span(16.2, 16.65),
        24.4: span(24.4, 24.6, Kind.LAST),
        24.401: span(24.6, 150.0, Kind.REST),
    }
    rings = sampled(40.0, announced).rings
    assert 16.2 <= rings[1] < 16.2 + 2.4
    within = [at_s for at_s in rings[1:] if at_s < 24.4]
    assert max(late - early for early, late in pairwise(within)) < 1.15
    assert 24.6 <= rings[-1] < 24.8


def test_the_end_is_read_though_no_close_look_saw_it(sampled):
    """The window ended before its end was expected, and its report was heard of too late for a pass in between."""
    announced = {2.25: span(2.0, 2.2, Kind.LAST), 2.251: span(2.2, 120.0, Kind.REST)}
    full = [at_s for at_s, wanted in sampled(8.0, announced).passes if wanted >= DEAR]
    assert [at_s for at_s in full if 2.25 <= at_s < 2.85]


def test_a_rest_is_slower_and_over_at_a_word(sampled):
    """Start and compile are half of a launch; but a window that follows must not find the sampler asleep."""
    source = sampled(30.0, {0.1: span(2.0, 120.0, Kind.REST), 26.03: span(26.03, 120.0, Kind.NEAR)})
    rested = [wanted for at_s, wanted in source.passes if 2.2 <= at_s < 26.0]
    assert 32 <= len(rested) <= 36
    assert not any(wanted >= DEAR for wanted in rested)
    begun = [(at_s, wanted) for at_s, wanted in source.passes if at_s >= 26.0]
    assert begun[0][0] < 26.25
    assert max(late[0] - early[0] for early, late in pairwise(begun)) < 0.25
    full = [at_s for at_s, wanted in begun[:-1] if wanted >= DEAR]
    assert len(full) == 1  # as a warm-up begins ranks allocate, and reads wait for it: 9 to 14 ms
    assert 27.03 <= full[0] < 27.35  # from then on an edge is bracketed


def test_a_long_rest_is_not_blind(sampled):
    """A compiler may take minutes; once in one all is read, and a warm-up after it begins as after any."""
    announced = {
        0.1: span(0.5, 120.0, Kind.REST),
        65.0: span(65.0, 67.0, Kind.NEAR),
        67.0: span(67.0, 120.0, Kind.REST),
    }
    announced |= {70.0: span(70.0, 130.0, Kind.NEAR)}
    full = [at_s for at_s, wanted in sampled(75.0, announced).passes if wanted >= DEAR]
    assert [round(at_s) for at_s in full if 2.0 < at_s < 74.9] == [60, 66, 71, 74]


def test_an_edge_ends_a_rest_at_once(sampled):
    """A window that nobody said was near, or that came right after it."""
    for announced in ({}, {3.02: span(3.02, 120.0, Kind.NEAR)}):
        passes = sampled(6.0, {0.1: span(1.0, 120.0, Kind.REST), **announced, 3.05: span(3.4, 3.9)}).passes
        close = [at_s for at_s, wanted in passes if "energy_j" in wanted and 3.3 < at_s < 4.0]
        assert close[0] < 3.55
        assert max(late - early for early, late in pairwise(close)) < 0.15


def test_reads_of_a_nightly_launch(sampled):
    """The reads that take milliseconds, of a launch as it was on an H200: warm-up from 21.4 s, a window from 27.25 to
    42.45 s, its length told as 15.2 s. They were 43 full passes and 24 of all counters."""
    source = sampled(
        44.0,
        {
            0.03: span(0.98, 120.0, Kind.REST),
            10.0: span(10.0, 130.0, Kind.REST),
            12.0: span(12.0, 132.0, Kind.REST),
            21.4: span(21.4, 141.4, Kind.NEAR),
            27.0: span(27.0, 27.5),
            27.01: span(41.96, 48.0),
            42.6: span(42.6, 42.7, Kind.LAST),
            42.61: span(42.7, 162.6, Kind.REST),
        },
    )
    full = sum(wanted >= DEAR for _, wanted in source.passes)
    energy = sum(wanted & DEAR == AT_EDGES for _, wanted in source.passes)
    assert 18 <= full <= 21
    assert 10 <= energy <= 13
    assert 210 <= len(source.passes) <= 235
    window = [at_s for at_s, wanted in source.passes if wanted >= DEAR and 27.0 <= at_s <= 42.85]
    assert max(late - early for early, late in pairwise(window)) < 1.15
    for begin_s, end_s in ((27.1, 27.5), (42.1, 42.8)):
        at = [at_s for at_s, wanted in source.passes if "energy_j" in wanted and begin_s - 0.3 <= at_s <= end_s]
        assert max(late - early for early, late in pairwise(at)) < 0.15


def test_who_is_no_process_of_this_container_is_no_stranger(sampled):
    """Where ranks have a PID namespace of their own, or the driver tells the host's PIDs, every one of ours is such a
    number. One that is here and not ours is told, once it has been seen twice."""
    assert sampled(5.0, {}, pids=(2**22 + 1, os.getpid())).events == []
    (event,) = sampled(5.0, {}, pids=(os.getppid(),)).events
    assert (event.kind, event.text) == ("processes", f"pid {os.getppid()} computes on this device and is none of ours")


def test_who_is_seen_once_is_looked_for_at_the_next_pass(sampled):
    """And told then; one that comes and goes is never seen twice in a row."""
    (event,) = sampled(6.0, {}, pids=lambda look: (os.getppid(),) if look >= 2 else ()).events
    assert 2.9 < event.mono_ns / S < 3.5
    assert sampled(9.0, {}, pids=lambda look: (os.getppid(),) if look % 2 else ()).events == []


def test_a_pid_that_comes_again_may_be_somebody_else(sampled, monkeypatch):
    """Once it was ours; a job that runs for days sees numbers come again."""
    ours = iter((True,))
    monkeypatch.setattr(device_reader, "descends", lambda pid, ancestor: next(ours, False))
    (event,) = sampled(8.0, {}, pids=lambda look: () if look == 2 else (7,)).events
    assert event.text == "pid 7 computes on this device and is none of ours"


def test_who_computes_is_looked_up_every_other_second(sampled):
    """Half a millisecond of an H200's driver each time. Who was seen once is looked for at the next pass over all."""
    assert 5 <= sampled(10.0, {}).looks <= 6
    assert 10 <= sampled(10.0, {}, pids=(os.getppid(),)).looks <= 11
    assert 5 <= sampled(10.0, {}, pids=(os.getpid(),)).looks <= 6


def test_a_sleep_in_the_last_second_is_told(tmp_path, monkeypatch):
    """Between the sampler's last look at the clocks and its end nobody looked, and a window may end just there."""
    source, inbox = Asked(SimpleNamespace(ns=0)), Inbox()
    sampling = Sampling(SamplerConfig(path=str(tmp_path / "trace"), source="asked"), source, inbox)
    now = Instant.now

    def later() -> Instant:
        return now()._replace(boot_ns=now().boot_ns + 30 * S, wall_ns=now().wall_ns + 30 * S)

    monkeypatch.setattr(sampler.Instant, "now", staticmethod(later))
    inbox.order(Stop("told to"))
    sampling.run(lambda: None)
    assert [event.text for event in read_trace(tmp_path / "trace").events if event.kind == "suspended"] == [
        "the machine was suspended for 30.0 s"
    ]
