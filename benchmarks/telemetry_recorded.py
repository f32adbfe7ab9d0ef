"""Energy per token of recorded launches, from the driver's 1 s average of power.

    python benchmarks/telemetry_recorded.py FILE

FILE has one launch a line, as tests/data/h200_launches.jsonl. Prints one JSON line each: `tag`; `energy_per_token_mj`,
millijoules: time-weighted mean of the 1 s average, times the window, over the tokens of its steps (microbatch x
sequence length x steps), null where the readings do not carry it; `bracketed`; `reason`, why not bracketed or why null.

Such a file says how long a window was, not when it began, and its samples were taken within it. Telemetry that spans
less than the window cannot have bracketed it. It holds no samples of the energy counter, only the difference over the
window, which is a multiple of what the board draws in 100 ms.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from recorded import UNCHANGED, print_lines, read_launches

from pytest_charllm.measure.energy import SHORTEST_S
from pytest_charllm.measure.series import Series, coverage, mean
from pytest_charllm.measure.stale import stale
from pytest_charllm.measure.windows import COVERAGE_NEEDED

AVERAGE, INSTANT = "power_1s_avg_w", "power_instant_w"
COLUMNS = {"power_average_w": AVERAGE, "power_instant_w": INSTANT, "sm_clock_mhz": "sm_clock_mhz"}
"""Quantity -> its column."""
REFRESH_NS = 100_000_000


class Launch(NamedTuple):
    """`columns`: readings by column name, on the file's own clock in nanoseconds. `counter_j`: raw difference."""

    tag: str
    unchanged: bool
    tokens: int
    window_s: float
    counter_j: float | None
    columns: dict[str, Series]

    def series(self, column: str) -> Series:
        return self.columns.get(column, Series((), ()))

    @property
    def span_s(self) -> float:
        times_ns = self.series(AVERAGE).times_ns
        return (times_ns[-1] - times_ns[0]) / 1e9 if times_ns else 0.0


def read(path: Path) -> list[Launch]:
    """Raises `ValueError` naming the line that is not a launch."""
    return read_launches(path, _launch)


def _launch(row: dict[str, Any]) -> Launch:
    samples = row.get("telemetry", [])
    names = list(row["telemetry_columns"]) if samples else ["unix_s"]
    clock = names.index("unix_s")
    # In time order, one sample a moment: a merged or damaged file may have neither.
    by_time = {round(float(sample[clock]) * 1e9): sample for sample in samples}
    counter_j = row.get("energy_counter_delta_j")
    return Launch(
        tag=str(row["tag"]),
        unchanged=row["inject"] == UNCHANGED,
        tokens=int(row["microbatch"]) * int(row["seq_len"]) * len(row["step_ms"]),
        window_s=float(row["window_s"]),
        counter_j=None if counter_j is None else float(counter_j),
        columns={
            name: _readings([(time_ns, by_time[time_ns][index]) for time_ns in sorted(by_time)])
            for index, name in enumerate(names)
            if index != clock
        },
    )


def _readings(points: list[tuple[int, Any]]) -> Series:
    """Those that are numbers: what could not be read is left out, never filled in."""
    known = [(time_ns, float(value)) for time_ns, value in points if value is not None and math.isfinite(value)]
    return Series(tuple(time_ns for time_ns, _ in known), tuple(value for _, value in known))


def unusable(launch: Launch) -> str:
    """Why its power readings give no energy, "" where they do."""
    power = launch.series(AVERAGE)
    if not launch.tokens:
        return "no steps, so no tokens"
    if not SHORTEST_S <= launch.window_s < math.inf:
        return f"a window of {launch.window_s:g} s is shorter than {SHORTEST_S:g} s"
    if len(power.times_ns) < 2:
        return f"{len(power.times_ns)} readings of {AVERAGE}"
    if min(power.values) <= 0:
        return f"a reading of {min(power.values):g} W"
    begin_ns, end_ns = power.times_ns[0], power.times_ns[-1]
    spacing_ns = round(statistics.median(later - earlier for earlier, later in pairwise(power.times_ns)))
    seen_s = launch.span_s * coverage(power, begin_ns, end_ns, spacing_ns)
    old = stale(
        "power_average_w", lambda quantity: launch.series(COLUMNS.get(quantity, "")), begin_ns, end_ns, REFRESH_NS
    )
    if old is not None and seen_s - old.total_ns / 1e9 < COVERAGE_NEEDED * launch.window_s:
        return f"{AVERAGE} {old.text}"
    share = min(1.0, seen_s / launch.window_s)
    if share < COVERAGE_NEEDED:
        return f"{AVERAGE} seen in {100 * share:.0f} % of the window, {100 * COVERAGE_NEEDED:.0f} % needed"
    return ""


def by_power(launch: Launch, column: str) -> float:
    """Millijoules a token from one of the power columns."""
    power = launch.series(column)
    return 1e3 * mean(power, power.times_ns[0], power.times_ns[-1]) * launch.window_s / launch.tokens


def by_average(launch: Launch) -> float:
    return by_power(launch, AVERAGE)


def by_instant(launch: Launch) -> float:
    """Of momentary readings: each sees 25 ms of 100, so that the mean depends on which."""
    return by_power(launch, INSTANT)


def by_raw_counter(launch: Launch) -> float:
    """Of the counter's difference as it was read, not interpolated to the window's edges. NaN where there is none."""
    return math.nan if launch.counter_j is None else 1e3 * launch.counter_j / launch.tokens


def spread(launches: list[Launch], way: Callable[[Launch], float]) -> float:
    """Coefficient of variation over the unchanged launches."""
    values = [way(launch) for launch in launches if launch.unchanged]
    return statistics.stdev(values) / statistics.fmean(values)


def measured(launches: list[Launch]) -> Iterator[dict[str, object]]:
    for launch in launches:
        why_not = unusable(launch)
        bracketed = launch.span_s >= launch.window_s > 0
        short = f"not bracketed: telemetry spans {launch.span_s:.3f} s of a window of {launch.window_s:.3f} s"
        yield {
            "tag": launch.tag,
            "energy_per_token_mj": None if why_not else round(by_average(launch), 4),
            "bracketed": bracketed,
            "reason": "; ".join(text for text in (why_not, "" if bracketed else short) if text),
        }


if __name__ == "__main__":
    sys.exit(print_lines(__doc__, read, measured))
