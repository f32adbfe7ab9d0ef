"""From a trace under a known load: how often each sensor's value changes, and how far it runs behind the load.

Lag: of all shifts tau, the one at which `a + b t + c load(t - tau)` fits the readings best; for a counter the time
under load takes the place of the load. `explained` is what the load explains beyond a straight line: where that is
little, there is no lag. What a sensor averages over the last w seconds lags by w/2; what it holds for r, by r/2 more.

Refresh: readings change at `phi + n r`, seen late by up to a sampling period. The period r is the one that most moments
of change agree on; `regularity` is their mean resultant length on a circle of that circumference, 1 where all agree.
What changes at every reading may change faster than it is read, so then there is only the spacing of the readings; what
changes at most of them is seen to change too late and too unevenly for a period, but on the mean as often as it does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pytest_charllm.measure.series import Series, refreshes, series
from pytest_charllm.records.telemetry import CUMULATIVE, Trace

RING = "power_ring_w"
"""The driver's own record of power, beside the quantities of the samples."""
FEWEST_CHANGES = 20
EXPLAINED_ENOUGH = 0.3
REGULAR_ENOUGH, BY_CHANCE = 0.5, 1.5
"""Of n changes some period pleases many: the best of m looks like sqrt(ln m / n) by chance. So many times that."""
LONGEST_REFRESH_S = 2.0
MOST = 1.15
"""Changes this many times further apart than the readings are fewer than these."""
COARSE_S, FINE_S = 0.05, 0.002
SOONEST_S = -0.5


class Edge(NamedTuple):
    """The load goes on or off at this moment of CLOCK_MONOTONIC."""

    mono_ns: int
    on: bool


class Load:
    """0 or 1 over time, 0 before the first edge. Edges alternate, the first one is on."""

    def __init__(self, edges: Sequence[Edge]) -> None:
        self.begin_ns = edges[0].mono_ns
        self._at_s = np.array([self.seconds(edge.mono_ns) for edge in edges])
        self._state = np.array([0.0, *(float(edge.on) for edge in edges)])
        spent_s = self._state[1:-1] * np.diff(self._at_s)
        self._total_s = np.concatenate([[0.0], np.cumsum(spent_s)])
        self.end_s = float(self._at_s[-1])

    def seconds(self, mono_ns: int) -> float:
        """Since the first edge."""
        return (mono_ns - self.begin_ns) / 1e9

    def at(self, times_s: np.ndarray) -> np.ndarray:
        return self._state[np.searchsorted(self._at_s, times_s, side="right")]

    def total(self, times_s: np.ndarray) -> np.ndarray:
        """Seconds under load until then."""
        return np.interp(times_s, self._at_s, self._total_s)


def estimates(trace: Trace, edges: Sequence[Edge], latest_s: float) -> dict[str, dict[str, Any]]:
    """Of each quantity of the trace's only device, over the time of the load. `latest_s`: longest lag to look for."""
    ((uuid, samples),) = trace.samples.items()
    load = Load(edges)
    found: dict[str, dict[str, Any]] = {}
    for quantity in sorted({name for sample in samples for name in sample.values}):
        found[quantity] = estimate(series(samples, quantity), load, quantity in CUMULATIVE, latest_s)
    ring = trace.power_ring.get(uuid, ())
    if ring:
        found[RING] = estimate(Series(*map(tuple, zip(*ring, strict=True))), load, False, latest_s)
    return found


def estimate(readings: Series, load: Load, is_counter: bool, latest_s: float) -> dict[str, Any]:
    times_s = np.array([load.seconds(time_ns) for time_ns in readings.times_ns])
    inside = (times_s > -2) & (times_s < load.end_s + 2)
    times_s, values = times_s[inside], np.array(readings.values)[inside]
    if len(times_s) < 2:
        return {"readings": len(times_s), "reason": "hardly read"}
    kept = Series(tuple(round(at_s * 1e9) for at_s in times_s), tuple(values.tolist()))
    changes = refreshes(kept)
    changes_s = np.array(changes.times_ns) / 1e9
    spacing_s = statistics.median(np.diff(times_s).tolist())
    told: dict[str, Any] = {"readings": len(times_s), "spacing_s": spacing_s, "changes": len(changes_s)}
    if len(changes_s) < FEWEST_CHANGES:
        return told | {"reason": f"changed {len(changes_s)} times"}
    told |= refresh(changes_s, spacing_s)
    if is_counter:
        times_s, values = changes_s, np.array(changes.values)
    return told | lag(times_s, values, load, is_counter, latest_s)


def refresh(changes_s: np.ndarray, spacing_s: float) -> dict[str, Any]:
    between_s = [later - earlier for earlier, later in pairwise(changes_s.tolist())]
    mean_s = statistics.fmean(between_s)
    told: dict[str, Any] = {"change_interval_p50_s": statistics.median(between_s), "change_interval_mean_s": mean_s}
    if told["change_interval_p50_s"] < 1.5 * spacing_s:
        every = f"changes at every reading, so within {spacing_s:.3f} s"
        most = f"changes at most readings, {mean_s:.3f} s apart on the mean"
        return told | {"refresh_s": None, "refresh_reason": most if mean_s > MOST * spacing_s else every}
    span_s = float(changes_s[-1] - changes_s[0])
    frequencies = np.arange(1 / LONGEST_REFRESH_S, 1 / (1.5 * spacing_s), 0.25 / span_s)
    agree = np.array([abs(np.exp(2j * np.pi * frequency * changes_s).mean()) for frequency in frequencies])
    best = int(agree.argmax())
    regular = float(agree[best])
    if regular < max(REGULAR_ENOUGH, BY_CHANCE * math.sqrt(math.log(len(frequencies)) / len(changes_s))):
        return told | {"refresh_s": None, "regularity": regular, "refresh_reason": "changes at no steady pace"}
    return told | {"refresh_s": float(1 / frequencies[best]), "regularity": regular}


def lag(times_s: np.ndarray, values: np.ndarray, load: Load, is_counter: bool, latest_s: float) -> dict[str, Any]:
    shape = load.total if is_counter else load.at
    line = np.stack([np.ones_like(times_s), times_s], axis=1)
    unexplained = _residual(line, values)
    if not unexplained:
        return {"lag_s": None, "explained": 0.0, "lag_reason": "a straight line"}

    def left(shift_s: float) -> float:
        return _residual(np.column_stack([line, shape(times_s - shift_s)]), values) / unexplained

    coarse = min(np.arange(SOONEST_S, latest_s, COARSE_S), key=left)
    fine = np.arange(coarse - COARSE_S, coarse + COARSE_S, FINE_S)
    best = float(min(fine, key=left))
    explained = 1 - left(best)
    if explained < EXPLAINED_ENOUGH:
        return {"lag_s": None, "explained": explained, "lag_reason": "does not follow the load"}
    if best > latest_s - 2 * COARSE_S:
        return {"lag_s": None, "explained": explained, "lag_reason": f"over {latest_s:g} s, the most looked for"}
    return {"lag_s": best, "explained": explained}


def _residual(columns: np.ndarray, values: np.ndarray) -> float:
    """Sum of squares that the best combination of the columns leaves."""
    weights = np.linalg.lstsq(columns, values, rcond=None)[0]
    return float(((values - columns @ weights) ** 2).sum())
