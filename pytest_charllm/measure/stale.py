"""Sensors that stand still while the board does not: their value is old, and an old value is no evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytest_charllm.measure.series import Series, standstills, went_backwards, within

STANDSTILL_S = 1.0
"""For this long an unchanged power or energy is believed, from then on it is old: boards change both every refresh."""
WARMING_S = 5.0
"""Within this time a core that went from idle to load has changed by more than a degree."""

POWERS = ("power_instant_w", "power_average_w")
COUNTERS = ("energy_j", "package_energy_j")
CLOCK = "sm_clock_mhz"
TEMPERATURES = ("core_temp_c", "hbm_temp_c", "package_temp_c")


class Stale(NamedTuple):
    """For how long within the span the readings were old, and the longest time in words."""

    total_ns: int
    text: str


def stale(
    quantity: str, series_of: Callable[[str], Series], begin_ns: int, end_ns: int, refresh_ns: int
) -> Stale | None:
    """Where this quantity's readings of the span are not believed; None where all are.

    An energy counter may never stand still. A power may, if the load is flat: then the counter advances evenly
    and no other power sensor moves. A temperature in whole degrees stands still for minutes; one that never
    changed at all while the power more than doubled is stuck. Clocks and throttle counters may stand still for ever.
    """
    readings = series_of(quantity)
    if quantity in TEMPERATURES:
        why = _never_warmed(readings, series_of("power_instant_w"))
        return Stale(end_ns - begin_ns, why) if why else None
    if quantity not in (*POWERS, *COUNTERS):
        return None
    found: list[Stale] = []
    shortest_ns = round(STANDSTILL_S * 1e9)
    for first_ns, last_ns in standstills(readings, shortest_ns):
        left_ns, right_ns = max(first_ns, begin_ns), min(last_ns, end_ns)
        if right_ns - left_ns < shortest_ns:
            continue
        witness = "" if quantity in COUNTERS else _moved(quantity, series_of, left_ns, right_ns, refresh_ns)
        if witness is not None:
            text = f"stale: unchanged for {(right_ns - left_ns) / 1e9:.1f} s{witness}"
            found.append(Stale(right_ns - left_ns - shortest_ns, text))
    if not found:
        return None
    return Stale(sum(each.total_ns for each in found), max(found).text)


def _moved(power: str, series_of: Callable[[str], Series], left_ns: int, right_ns: int, refresh_ns: int) -> str | None:
    """Who saw the load change while this power sensor did not."""
    fine = any(power_w % 1 for power_w in within(series_of(power), left_ns, right_ns).values)
    # Held at its cap, a power in whole watts stands still for real while the clock moves.
    for other in (*POWERS, *((CLOCK,) if fine else ())):
        if other != power and len(set(within(series_of(other), left_ns, right_ns).values)) > 1:
            return f" while {other} moved"
    for counter in COUNTERS:
        if _bends(within(series_of(counter), left_ns, right_ns), refresh_ns):
            return f" while {counter} did not advance evenly"
    return None


def _bends(counter: Series, refresh_ns: int) -> bool:
    """Whether the counter stood still, or left the straight line of a flat load.

    Any of its readings may be as old as a refresh. At which power it advances is no matter here: a power sensor of
    another scope or gain disagrees with it, and that is told as a disagreement.
    """
    if len(counter.times_ns) < 3 or went_backwards(counter):
        return False
    first_ns, first_j = counter.times_ns[0], counter.values[0]
    watts = (counter.values[-1] - first_j) / ((counter.times_ns[-1] - first_ns) / 1e9)
    return not watts or any(
        abs(joules - first_j - watts * (time_ns - first_ns) / 1e9) > 2 * watts * refresh_ns / 1e9
        for time_ns, joules in zip(*counter, strict=True)
    )


def _never_warmed(temperatures: Series, powers: Series) -> str | None:
    if len(set(temperatures.values)) != 1 or not powers or max(powers.values) <= 2 * min(powers.values):
        return None
    loaded_ns = next(t for t, power_w in zip(*powers, strict=True) if power_w > 2 * min(powers.values))
    if temperatures.times_ns[-1] - loaded_ns < WARMING_S * 1e9:
        return None
    return f"stale: {temperatures.values[0]:g} degC all the time while power more than doubled"
