"""The measured window of each device on the sampler's clock, with the samples that bracket it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from pytest_charllm.measure.series import (
    EMPTY,
    Series,
    at,
    coverage,
    largest_gap_ns,
    not_bracketed,
    series,
    standstills,
    went_backwards,
    within,
)
from pytest_charllm.measure.stale import Stale, stale
from pytest_charllm.records import DeviceLine, Launch, RankReport, SampleLine, Trace, Value

COVERAGE_NEEDED = 0.95
"""A sampled quantity counts as measured only when at least this share of the window has readings in time."""
_GRACE_NS = 500_000_000
"""On top of three periods, how long a sensor may go unread: a busy host delays a pass, which loses nothing."""
IMPLAUSIBLE_SHARE = 0.01
"""One implausible reading is a glitch; more than this share of them is a broken sensor."""
ENOUGH_RING = 50
"""Readings of the driver's own ring within the window from which on it replaces samples,"""
RING_SHARE = 0.95
"""provided that they span this share of it,"""
RING_GAP = 5.0
"""none lies further from the next than this many times the median, which on H200s is 20 ms, at most 48,"""
RING_STANDSTILL_NS = 1_000_000_000
"""and they never stand still for so long."""


@dataclass(frozen=True)
class DeviceWindow:
    """One device's samples, and the window its ranks measured: edges in CLOCK_MONOTONIC nanoseconds."""

    uuid: str
    line: DeviceLine
    samples: tuple[SampleLine, ...]
    begin_ns: int
    end_ns: int
    period_ns: int
    """Spacing of the readings."""
    slow_period_ns: int
    """The same of quantities that are read more seldom."""
    ring: Series = EMPTY
    """Power of the whole board as the driver kept it by itself."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def duration_s(self) -> float:
        return self.duration_ns / 1e9

    def series(self, quantity: str) -> Series:
        return series(self.samples, quantity)

    def whole_ring(self) -> Series:
        """The driver's own power readings within the window, if they cover it and can be believed; else none."""
        ring = within(self.ring, self.begin_ns, self.end_ns)
        if len(ring.times_ns) < ENOUGH_RING or ring.times_ns[-1] - ring.times_ns[0] < RING_SHARE * self.duration_ns:
            return EMPTY
        gaps_ns = [later - earlier for earlier, later in pairwise(ring.times_ns)]
        holed = max(gaps_ns) > RING_GAP * statistics.median(gaps_ns)
        return EMPTY if holed or any(standstills(ring, RING_STANDSTILL_NS)) else ring

    def not_bracketed(self, quantity: str, readings: Series) -> str | None:
        return not_bracketed(readings, self.begin_ns, self.end_ns, self._longest_gap_ns(quantity))

    def coverage(self, quantity: str, readings: Series) -> float:
        return coverage(readings, self.begin_ns, self.end_ns, self._period_ns(quantity))

    def gap_s(self, readings: Series) -> float:
        return largest_gap_ns(readings, self.begin_ns, self.end_ns) / 1e9

    def stale(self, quantity: str) -> Stale | None:
        refresh_ns = max(self.period_ns, round(self.line.refresh_s * 1e9))
        return stale(quantity, self.series, self.begin_ns, self.end_ns, refresh_ns)

    def stuck(self, quantity: str) -> str | None:
        """Why so much of the window is stale that nothing which depends on this quantity is to be believed, or None."""
        old = self.stale(quantity)
        return old.text if old is not None and old.total_ns > (1 - COVERAGE_NEEDED) * self.duration_ns else None

    def _period_ns(self, quantity: str) -> int:
        return self.slow_period_ns if quantity in self.line.slow else self.period_ns

    def _longest_gap_ns(self, quantity: str) -> int:
        return 3 * self._period_ns(quantity) + _GRACE_NS

    def _unseen(self, quantity: str, covered: float, gap_s: float, old: Stale | None) -> str | None:
        """Why too little was read within the window, or None."""
        if covered < COVERAGE_NEEDED and old is not None:
            return old.text
        if covered < COVERAGE_NEEDED:
            return f"seen in {100 * covered:.0f} % of the window, {100 * COVERAGE_NEEDED:.0f} % needed"
        longest_s = self._longest_gap_ns(quantity) / 1e9
        return f"not read for {gap_s:.1f} s, {longest_s:.1f} s allowed" if gap_s > longest_s else None

    def _implausible(self, quantity: str) -> str | None:
        """Why its readings are not believed: too many of them could not be true."""
        passes = [sample for sample in self.samples if self.begin_ns <= sample.mono_ns <= self.end_ns]
        wrong = [said for each in passes if (said := each.missing.get(quantity, "")).startswith("implausible")]
        if len(wrong) <= max(1, IMPLAUSIBLE_SHARE * len(passes)):
            return None
        return f"implausible in {len(wrong)} of {len(passes)} readings, the first {wrong[0].partition(': ')[2]}"

    def absent(self, quantity: str) -> str:
        """Why there is no reading of this quantity at all: what the source said at the start, or while sampling."""
        capability = self.line.capabilities.get(quantity, "ok")
        if capability != "ok":
            return f"{quantity}: {capability}"
        said = next((sample.missing[quantity] for sample in self.samples if quantity in sample.missing), None)
        return f"{quantity}: {said or 'never read'}"

    def advance(self, quantity: str) -> float | str:
        """How far a cumulative counter moved in the window, in its unit, or the reason why that is not known."""
        readings = self.series(quantity)
        if not readings:
            return self.absent(quantity)
        if (reason := self.not_bracketed(quantity, readings)) is not None:
            return f"{quantity} {reason}"
        if went_backwards(readings):
            return f"{quantity} went backwards: the counter was reset"
        return at(readings, self.end_ns) - at(readings, self.begin_ns)

    def sampled(self, quantity: str, unit: str, reduce: Callable[[Series], float]) -> Value:
        """`reduce` applied to a quantity that has to be seen through the whole window, or the reason why not."""
        readings = self.series(quantity)
        if not readings:
            return Value(value=None, unit=unit, reason=self.absent(quantity))
        reason = self.not_bracketed(quantity, readings) or self._implausible(quantity)
        covered, gap_s = self.coverage(quantity, readings), self.gap_s(readings)
        if (old := self.stale(quantity)) is not None:
            covered = max(0.0, covered - old.total_ns / self.duration_ns)
        reason = reason or self._unseen(quantity, covered, gap_s, old)
        if reason is not None:
            return Value(value=None, unit=unit, coverage=covered, gap_s=gap_s, reason=f"{quantity} {reason}")
        return Value(value=reduce(readings), unit=unit, coverage=covered, gap_s=gap_s)


def seen(readings: Series, window: DeviceWindow) -> tuple[float, ...]:
    """The readings within the window and those interpolated at its edges, so that even a short one has two."""
    edges = (at(readings, window.begin_ns), at(readings, window.end_ns))
    return (*within(readings, window.begin_ns, window.end_ns).values, *edges)


def percentile(readings: Series, window: DeviceWindow, percent: float) -> float:
    """Of all that was seen. `percent` in steps of one half."""
    return statistics.quantiles(seen(readings, window), n=200, method="inclusive")[round(2 * percent) - 1]


def device_windows(launch: Launch, trace: Trace | None, is_cpu: bool) -> tuple[tuple[DeviceWindow, ...], str | None]:
    """The windows of the devices this launch ran on, or none and the reason.

    A GPU's window is that of its ranks. On a CPU all ranks share what is sampled, so its window spans all of theirs.
    """
    if trace is None:
        return (), "no telemetry"
    ranks_of: dict[str, list[RankReport]] = {}
    for report in launch.ranks:
        if report.window is None:
            return (), f"rank {report.rank} reports no window"
        if report.window.end_mono_ns <= report.window.begin_mono_ns:
            return (), f"the window of rank {report.rank} has no length"
        if report.host != trace.meta.host:
            return (), f"rank {report.rank} ran on {report.host}, telemetry is of {trace.meta.host}"
        if is_cpu:
            for uuid in trace.devices:
                ranks_of.setdefault(uuid, []).append(report)
            continue
        named = report.device.uuid or report.device.pci
        if named is None:
            return (), f"rank {report.rank} reports no device UUID"
        device = trace.device_of(report.device.uuid, report.device.pci)
        if device is None:
            return (), f"no telemetry of {named} (rank {report.rank})"
        ranks_of.setdefault(device.uuid, []).append(report)
    if not ranks_of:
        return (), "no device was sampled"
    return tuple(_window(trace, uuid, reports) for uuid, reports in sorted(ranks_of.items())), None


def _window(trace: Trace, uuid: str, reports: Sequence[RankReport]) -> DeviceWindow:
    line = _as_it_was(trace.devices[uuid], trace.samples.get(uuid, ()))
    pace = trace.end.pace.get(uuid) if trace.end is not None else None
    ring = trace.power_ring.get(uuid, ())
    edges = [report.window for report in reports if report.window is not None]
    # A sampler that slowed down has said so: its device was seen as often as it then meant to look.
    period_s = max(trace.meta.period_s, line.refresh_s, pace.period_s if pace is not None else 0.0)
    return DeviceWindow(
        uuid=uuid,
        line=line,
        samples=trace.samples.get(uuid, ()),
        begin_ns=min(edge.begin_mono_ns for edge in edges),
        end_ns=max(edge.end_mono_ns for edge in edges),
        period_ns=round(period_s * 1e9),
        slow_period_ns=round(max(period_s, trace.meta.slow_period_s or 0.0) * 1e9),
        ring=Series(tuple(time_ns for time_ns, _ in ring), tuple(power_w for _, power_w in ring)),
    )


def _as_it_was(line: DeviceLine, samples: Sequence[SampleLine]) -> DeviceLine:
    """With the power limit that was read in this trace: a sampler that serves several launches knew an earlier one."""
    limits_w = (sample.values.get("power_limit_w") for sample in samples)
    limit_w = next((limit_w for limit_w in limits_w if limit_w is not None), line.power_limit_w)
    return replace(line, power_limit_w=limit_w)


def over_devices(
    windows: Sequence[DeviceWindow], value_of: Callable[[DeviceWindow], Value], reduce: Callable[[list[float]], float]
) -> Value:
    """One value of all devices. A single device without evidence leaves none for all: its reason is kept, by UUID."""
    known: list[float] = []
    coverages: list[float] = []
    gaps_s: list[float] = []
    reasons: list[str] = []
    sources: set[str] = set()
    for window in windows:
        value = value_of(window)
        named = f"{window.uuid}: {value.reason}" if value.reason and len(windows) > 1 else value.reason
        if value.value is None:
            return replace(value, reason=named)
        known.append(value.value)
        if value.coverage is not None:
            coverages.append(value.coverage)
        if value.gap_s is not None:
            gaps_s.append(value.gap_s)
        if named:
            reasons.append(named)
        if value.source:
            sources.add(value.source)
    return Value(
        value=reduce(known),
        unit=value.unit,
        coverage=min(coverages, default=None),
        gap_s=max(gaps_s, default=None),
        source=" and ".join(sorted(sources)) or None,
        reason="; ".join(reasons) or None,
    )
