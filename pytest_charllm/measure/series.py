"""One quantity of one device over time, as points, and what can be asked of it over a span of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_charllm.records import SampleLine

IN_TIME = 1.8
"""A reading later than this many periods after the one before it means that a read in between failed. Jitter of both
and putting off a dear read make up to 1.75 (`telemetry.pace`, `telemetry.beat`)."""


class Series(NamedTuple):
    """Readings in time order. Times are CLOCK_MONOTONIC nanoseconds, strictly rising; values in the quantity's unit."""

    times_ns: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.times_ns)


EMPTY = Series((), ())


def series(samples: Sequence[SampleLine], quantity: str) -> Series:
    """The readings of one quantity, each at the time its device stamped it with, where it does, else at that of the
    pass. Passes in which it could not be read are left out, never filled in."""
    times: list[int] = []
    values: list[float] = []
    for sample in samples:
        value, time_ns = sample.values.get(quantity), sample.at_ns.get(quantity, sample.mono_ns)
        if value is not None and (not times or time_ns > times[-1]):
            times.append(time_ns)
            values.append(value)
    return Series(tuple(times), tuple(values))


def refreshes(readings: Series) -> Series:
    """Only the readings at which the value changed.

    A counter that refreshes every 100 ms is read again and again in between; a repeated value says nothing about the
    moment at which it was read. The first reading is dropped too: how old it was is not known.
    """
    changed = [
        (time_ns, value)
        for time_ns, value, before in zip(readings.times_ns[1:], readings.values[1:], readings.values, strict=False)
        if value != before
    ]
    return Series(tuple(time_ns for time_ns, _ in changed), tuple(value for _, value in changed))


def went_backwards(readings: Series) -> bool:
    """A cumulative counter that ever falls was reset in between, and its differences mean nothing."""
    return any(later < earlier for earlier, later in pairwise(readings.values))


def at(readings: Series, time_ns: int) -> float:
    """The value at a moment between the first and the last reading, by linear interpolation.

    Raises `ValueError` outside of them: nothing is ever extrapolated.
    """
    times, values = readings
    right = bisect_left(times, time_ns)
    if right < len(times) and times[right] == time_ns:
        return values[right]
    if right == 0 or right == len(times):
        raise ValueError(f"{time_ns} is not between the first and the last reading")
    share = (time_ns - times[right - 1]) / (times[right] - times[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])


def not_bracketed(readings: Series, begin_ns: int, end_ns: int, max_gap_ns: int) -> str | None:
    """Why the span is not bracketed by readings on both sides, or None when it is.

    An edge inside a gap longer than `max_gap_ns` counts as not bracketed: what happened in there is unknown.
    """
    for edge, name in ((begin_ns, "begin"), (end_ns, "end")):
        right = bisect_left(readings.times_ns, edge)
        if right < len(readings.times_ns) and readings.times_ns[right] == edge:
            continue
        if right == 0:
            return f"not bracketed: no reading before the window's {name}"
        if right == len(readings.times_ns):
            return f"not bracketed: no reading after the window's {name}"
        gap_ns = readings.times_ns[right] - readings.times_ns[right - 1]
        if gap_ns > max_gap_ns:
            return f"not bracketed: gap of {gap_ns / 1e9:.2f} s around the window's {name}"
    return None


def coverage(readings: Series, begin_ns: int, end_ns: int, period_ns: int) -> float:
    """Share of the span for which there is a reading, 0 to 1.

    A reading stands for the time until the next one. Where that comes later than `IN_TIME` periods, reads in between
    failed, and it stands for one period only.
    """
    covered = 0
    for left, right in pairwise(readings.times_ns):
        if right - left > IN_TIME * period_ns:
            right = left + period_ns
        covered += max(0, min(right, end_ns) - max(left, begin_ns))
    return covered / (end_ns - begin_ns)


def largest_gap_ns(readings: Series, begin_ns: int, end_ns: int) -> int:
    """The longest time between two successive readings of which any part lies in the span; 0 where there is none."""
    return max(
        (right - left for left, right in pairwise(readings.times_ns) if left < end_ns and right > begin_ns), default=0
    )


def standstills(readings: Series, at_least_ns: int) -> Iterator[tuple[int, int]]:
    """Where successive readings are equal for that long: time of the first and of the last of them."""
    first = 0
    times, values = readings
    for i in range(1, len(times) + 1):
        if i == len(times) or values[i] != values[first]:
            if times[i - 1] - times[first] >= at_least_ns:
                yield times[first], times[i - 1]
            first = i


def within(readings: Series, begin_ns: int, end_ns: int) -> Series:
    """The readings in the span, both edges included."""
    low, high = bisect_left(readings.times_ns, begin_ns), bisect_right(readings.times_ns, end_ns)
    return Series(readings.times_ns[low:high], readings.values[low:high])


def mean(readings: Series, begin_ns: int, end_ns: int) -> float:
    """Time-weighted mean over the span, which must be bracketed: a burst of samples does not count for more."""
    return integral(readings, begin_ns, end_ns) / ((end_ns - begin_ns) / 1e9)


def slope_per_s(readings: Series) -> float:
    """Least-squares slope over all readings, in the quantity's unit a second; needs two of them."""
    middle_s = sum(readings.times_ns) / len(readings.times_ns) / 1e9
    offsets_s = [time_ns / 1e9 - middle_s for time_ns in readings.times_ns]
    spread = sum(offset_s * offset_s for offset_s in offsets_s)
    return sum(offset_s * value for offset_s, value in zip(offsets_s, readings.values, strict=True)) / spread


def integral(readings: Series, begin_ns: int, end_ns: int) -> float:
    """Trapezoid over the span with interpolated edges, in the quantity's unit times seconds. Must be bracketed."""
    low, high = bisect_right(readings.times_ns, begin_ns), bisect_left(readings.times_ns, end_ns)
    times = (begin_ns, *readings.times_ns[low:high], end_ns)
    values = (at(readings, begin_ns), *readings.values[low:high], at(readings, end_ns))
    points = pairwise(zip(times, values, strict=True))
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in points) / 1e9
