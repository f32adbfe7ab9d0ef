"""The measured window of each device on the sampler's clock, with the samples that bracket it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_charllm.measure.series import Series, coverage, not_bracketed, series
from pytest_charllm.records import DeviceLine, Launch, RankReport, SampleLine, Trace, Value

COVERAGE_NEEDED = 0.95
"""A sampled quantity counts as measured only when at least this share of the window has fresh samples."""


@dataclass(frozen=True)
class DeviceWindow:
    """One device's samples, and the window its ranks measured: edges in CLOCK_MONOTONIC nanoseconds."""

    uuid: str
    line: DeviceLine
    samples: tuple[SampleLine, ...]
    begin_ns: int
    end_ns: int
    max_gap_ns: int
    slow_gap_ns: int
    """The same of quantities that are read more seldom."""

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    def series(self, quantity: str) -> Series:
        return series(self.samples, quantity)

    def not_bracketed(self, quantity: str, readings: Series) -> str | None:
        return not_bracketed(readings, self.begin_ns, self.end_ns, self._gap_ns(quantity))

    def coverage(self, quantity: str, readings: Series) -> float:
        return coverage(readings, self.begin_ns, self.end_ns, self._gap_ns(quantity))

    def _gap_ns(self, quantity: str) -> int:
        return self.slow_gap_ns if quantity in self.line.slow else self.max_gap_ns

    def absent(self, quantity: str) -> str:
        """Why there is no reading of this quantity at all: what the source said at the start, or while sampling."""
        capability = self.line.capabilities.get(quantity, "ok")
        if capability != "ok":
            return f"{quantity}: {capability}"
        said = next((sample.missing[quantity] for sample in self.samples if quantity in sample.missing), None)
        return f"{quantity}: {said or 'never read'}"

    def sampled(self, quantity: str, unit: str, reduce: Callable[[Series], float]) -> Value:
        """`reduce` applied to a quantity that has to be seen through the whole window, or the reason why not."""
        readings = self.series(quantity)
        if not readings:
            return Value(value=None, unit=unit, reason=self.absent(quantity))
        if (reason := self.not_bracketed(quantity, readings)) is not None:
            return Value(value=None, unit=unit, reason=f"{quantity} {reason}")
        covered = self.coverage(quantity, readings)
        if covered < COVERAGE_NEEDED:
            reason = f"{quantity} seen in {100 * covered:.0f} % of the window, {100 * COVERAGE_NEEDED:.0f} % needed"
            return Value(value=None, unit=unit, coverage=covered, reason=reason)
        return Value(value=reduce(readings), unit=unit, coverage=covered)


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
    line = trace.devices[uuid]
    edges = [report.window for report in reports if report.window is not None]
    period_s = max(trace.meta.period_s, line.refresh_s)
    return DeviceWindow(
        uuid=uuid,
        line=line,
        samples=trace.samples.get(uuid, ()),
        begin_ns=min(edge.begin_mono_ns for edge in edges),
        end_ns=max(edge.end_mono_ns for edge in edges),
        max_gap_ns=round((3 * period_s + 0.5) * 1e9),
        slow_gap_ns=round((3 * max(period_s, trace.meta.slow_period_s or 0.0) + 0.5) * 1e9),
    )


def over_devices(
    windows: Sequence[DeviceWindow], value_of: Callable[[DeviceWindow], Value], reduce: Callable[[list[float]], float]
) -> Value:
    """One value of all devices. A single device without evidence leaves none for all: its reason is kept, by UUID."""
    known: list[float] = []
    coverages: list[float] = []
    reasons: list[str] = []
    sources: set[str] = set()
    for window in windows:
        value = value_of(window)
        named = f"{window.uuid}: {value.reason}" if value.reason and len(windows) > 1 else value.reason
        if value.value is None:
            return Value(value=None, unit=value.unit, coverage=value.coverage, reason=named)
        known.append(value.value)
        if value.coverage is not None:
            coverages.append(value.coverage)
        if named:
            reasons.append(named)
        if value.source:
            sources.add(value.source)
    return Value(
        value=reduce(known),
        unit=value.unit,
        coverage=min(coverages, default=None),
        source=" and ".join(sorted(sources)) or None,
        reason="; ".join(reasons) or None,
    )
