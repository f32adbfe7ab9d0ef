"""Energy of a window: the hardware counter, with the integral of power as its cross-check."""

from __future__ import annotations

from msgspec.structs import replace

from pytest_charllm.measure.series import at, integral, mean, refreshes, went_backwards
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Value

UNIT = "J"
GAP_TAINTED = 0.05
"""Counter and integral further apart than this share of the counter are worth a line."""
GAP_INVALID = 0.15
"""Further apart than this, neither is believed."""
EDGES = 2
"""Of a short window refreshes at both edges are a larger part than either share: so many of them are allowed."""
SHORTEST_S = 1.0
"""Below this the refresh of the counter is too large a part of the window."""
IMPLAUSIBLE = 1.2
"""A mean power above this many times the limit is a broken counter, not a measurement."""


def energy(window: DeviceWindow) -> tuple[Value, Finding | None]:
    """Joules of one device over its window, and the finding when the two ways of measuring disagree.

    The counter is checked by the driver's own ring of power where that covers the window, else by the samples: of an
    unchanged FSDP2 step on H200s, whose power swings between 350 and 800 W, 150 samples of a window were 4.1 % below
    to 5.1 % above the counter, the ring 0.3 to 0.9 % above. Without one of the two the other is used; `source` names
    the one used and `reason` what is missing. Where one is there and stuck, neither is: they contradict each other, and
    who is right cannot be told.
    """
    if (reason := _too_short(window)) is not None:
        return _none(reason), None
    for quantity in ("energy_j", "package_energy_j", "power_instant_w"):
        if (text := window.stuck(quantity)) is not None:
            return _none(f"{quantity} {text}"), None
    counter, area = counter_energy(window), integral_energy(window)
    if counter.value is None and area.value is None:
        return Value(value=None, unit=UNIT, reason=f"counter: {counter.reason}; integral: {area.reason}"), None
    if counter.value is None:
        return replace(area, reason=f"no counter to check against: {counter.reason}"), None
    ring_j = ring_energy_j(window)
    # What the ring excuses is a few percent of luck. Samples further off are wrong, and peaks are made of them.
    checks = [("the driver's own readings", ring_j, GAP_TAINTED)] if ring_j is not None else []
    if area.value is not None:
        checks.append(("integral", area.value, GAP_INVALID if checks else GAP_TAINTED))
    if not checks:
        return replace(counter, reason=f"no integral to check against: {area.reason}"), None
    edges = EDGES * window.line.refresh_s / window.duration_s
    for number, (check, check_j, allowed) in enumerate(checks):
        gap = abs(check_j - counter.value) / counter.value
        told = f"counter {counter.value:.0f} J and {check} {check_j:.0f} J are {100 * gap:.0f} % apart"
        if number == 0 and gap > max(GAP_INVALID, edges):
            return replace(counter, value=None, source=None, reason=told), None
        if gap > max(allowed, edges):
            return counter, Finding(kind="energy-disagrees", text=f"{window.uuid}: {told}")
    return counter, None


def counter_energy(window: DeviceWindow) -> Value:
    """Difference of the counter between the edges, each interpolated between the refreshes around it."""
    quantity = "package_energy_j" if "package_energy_j" in window.line.capabilities else "energy_j"
    readings = window.series(quantity)
    if not readings:
        return _none(window.absent(quantity))
    if (reason := _too_short(window)) is not None:
        return _none(reason)
    if went_backwards(readings):
        return _none(f"{quantity} went backwards: the counter was reset")
    points = refreshes(readings)
    if not points:
        return _none(f"{quantity} never changed")
    if (reason := window.not_bracketed(quantity, points)) is not None:
        return _none(f"{quantity} {reason}")
    if (old := window.stale(quantity)) is not None:
        return _none(f"{quantity} {old.text}")
    joules = at(points, window.end_ns) - at(points, window.begin_ns)
    limit_w = window.line.power_limit_w
    if limit_w is not None and joules > IMPLAUSIBLE * limit_w * window.duration_s:
        mean_w = joules / window.duration_s
        return _none(f"{quantity} says {mean_w:.0f} W, more than {IMPLAUSIBLE:g} x the limit of {limit_w:.0f} W")
    covered, gap_s = window.coverage(quantity, readings), window.gap_s(readings)
    return Value(value=joules, unit=UNIT, coverage=covered, gap_s=gap_s, source="counter")


def integral_energy(window: DeviceWindow) -> Value:
    """Trapezoid of instant power over the window."""
    value = window.sampled("power_instant_w", UNIT, lambda readings: integral(readings, window.begin_ns, window.end_ns))
    return value if value.value is None else replace(value, source="integral")


def ring_energy_j(window: DeviceWindow) -> float | None:
    """Joules by the driver's own ring of power: its time-weighted mean over what it covers, times the window. None
    without one, and where the counter is that of a module: the ring is the board's."""
    times_ns = window.whole_ring().times_ns
    if not times_ns or "module" in window.line.semantics.get("energy_j", ""):
        return None
    return mean(window.ring, times_ns[0], times_ns[-1]) * window.duration_s


def _too_short(window: DeviceWindow) -> str | None:
    if window.duration_s >= SHORTEST_S:
        return None
    return f"a window of {window.duration_s:.2f} s is shorter than {SHORTEST_S:g} s"


def _none(reason: str) -> Value:
    return Value(value=None, unit=UNIT, reason=reason)
