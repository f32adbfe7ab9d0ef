"""What befell the devices while they were measured: errors of memory and links, a suspended machine, one held back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_charllm.measure import power
from pytest_charllm.measure.admission import Level, State, remarks
from pytest_charllm.measure.observations import sampler_findings, spoiled
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Launch, Trace

ERRORS = {
    "ecc_uncorrected": "uncorrected memory errors",
    "remapped_rows": "remapped memory rows",
    "link_errors": "link errors",
    "pcie_replays": "PCIe replays",
}
"""Entries of a snapshot that may not rise while something is measured, in words."""
HARMLESS = {"pcie_replays": 100}
"""How many of them are ordinary."""
OTHERS_NEEDED = 2
"""With one other device nobody can say which of the two is the odd one."""
SLOW_CLOCK = 0.05
"""A mean SM clock this share below the median of the others: a card held back, and all wait for it."""
LOCKED_CLOCK = 0.97
"""Below this share of its highest clock, standing still with nothing throttling it, a clock was locked by somebody."""
STILL_CLOCK = 0.01
"""A clock whose 5th percentile is no further below its mean stands still."""
HELD_CLOCK = 0.02
"""A locked clock is one of the driver's own steps, some 15 MHz apart: as near to the asked one."""

_CAUSES = {
    "throttle_power_cap_ns": "power cap",
    "throttle_sw_thermal_ns": "thermal slowdown",
    "throttle_hw_thermal_ns": "hardware thermal slowdown",
    "throttle_hw_brake_ns": "power brake",
}
_CAUSE_SHARE = 0.01
"""What throttles for no more of a window than this explains nothing."""
_LOOKS_NS = 1_500_000_000
"""The sampler looks after the clocks once a second, or a little later, and tells what happened since it looked before.
"""


class Health(NamedTuple):
    """Why nothing may be judged, or None; what makes it no baseline; what is worth a line."""

    refused: str | None
    taints: list[Finding]
    notes: list[Finding]


def health(launch: Launch, trace: Trace | None, windows: Sequence[DeviceWindow]) -> Health:
    """All that the devices and the sampler say against this measurement."""
    refused = mixed_drivers(launch)
    if trace is None:
        return Health(refused, [], [])
    told = _admission(trace, windows, launch.scenario.options.sm_clock)
    refused = spoiled(trace, windows) or told.refused or suspended(trace, windows) or refused
    notes = [*told.notes, *slow_devices(windows), *sampler_findings(trace)]
    return Health(refused, [*told.taints, *troubles(trace, windows)], notes)


def mixed_drivers(launch: Launch) -> str | None:
    """Whether the nodes of a job have different drivers: which of them is slow could not be told."""
    drivers = sorted({report.software.driver for report in launch.ranks if report.software.driver is not None})
    return f"ranks ran on different drivers: {' and '.join(drivers)}" if len(drivers) > 1 else None


def _admission(trace: Trace, windows: Sequence[DeviceWindow], asked_mhz: int) -> Health:
    """What the devices said of themselves before the load, and whether their clocks are those of the scenario."""
    told: dict[Level, list[str]] = {level: [] for level in Level}
    starts = {line.uuid: line.values for line in trace.snapshots if line.when == "start"}
    for window in windows:
        sensors = window.samples[0].values if window.samples else {}
        state = State(window.line, starts.get(window.uuid, {}), sensors, alone=len(windows) == 1)
        for remark in remarks(state):
            told[remark.level].append(f"{window.uuid}: {remark.text} (see {remark.command})")
        if asked_mhz:
            if (unheld := _unheld(window, asked_mhz)) is not None:
                told[unheld[0]].append(unheld[1])
        elif (locked := _locked(window, state)) is not None:
            told[Level.TAINTED].append(locked)
    taints, notes = (
        [Finding(kind="preflight", text=text) for text in told[level]] for level in (Level.TAINTED, Level.ADMITTED)
    )
    return Health("; ".join(told[Level.REFUSED]) or None, taints, notes)


def _locked(window: DeviceWindow, state: State) -> str | None:
    """No driver tells of locked clocks: they show as a plateau below the highest clock that nothing explains."""
    highest_mhz, mean_mhz = state.number("sm_clock_max_mhz"), power.sm_clock(window).value
    low_mhz = power.sm_clock_p5(window).value
    if not highest_mhz or mean_mhz is None or low_mhz is None:
        return None
    still = low_mhz > (1 - STILL_CLOCK) * mean_mhz
    throttled = [power.throttle_share(window, quantity).value for quantity in _CAUSES]
    if not still or mean_mhz >= LOCKED_CLOCK * highest_mhz:
        return None
    if any(share is None or share > _CAUSE_SHARE for share in throttled):
        return None
    shown = f"see {state.show('clocks')}; nvidia-smi -rgc unlocks"
    stands = f"SM clock stands at {mean_mhz:,.0f} of {highest_mhz:,.0f} MHz"
    return f"{window.uuid}: {stands} and nothing throttles it: locked ({shown})"


def _unheld(window: DeviceWindow, asked_mhz: int) -> tuple[Level, str] | None:
    """A clock above the locked one: the lock did not hold. One below it is the card's answer: a cap, or heat."""
    mean_mhz = power.sm_clock(window).value
    if mean_mhz is None or abs(mean_mhz / asked_mhz - 1) <= HELD_CLOCK:
        return None
    text = f"{window.uuid}: SM clock of {mean_mhz:,.0f} MHz on average, locked to {asked_mhz:,}"
    return (Level.TAINTED if mean_mhz > asked_mhz else Level.ADMITTED), text


def troubles(trace: Trace, windows: Sequence[DeviceWindow]) -> list[Finding]:
    """Why these numbers are to be taken with care: errors that were counted meanwhile, and those the driver told of."""
    ours = {window.uuid for window in windows}
    snapshots = {(line.uuid, line.when): line.values for line in trace.snapshots}
    findings = []
    for uuid in sorted(ours):
        before, after = snapshots.get((uuid, "start"), {}), snapshots.get((uuid, "end"), {})
        for entry, words in ERRORS.items():
            was, became = before.get(entry), after.get(entry)
            if isinstance(was, float | int) and isinstance(became, float | int):
                more = became - was
                if more > HARMLESS.get(entry, 0):
                    findings.append(Finding(kind="errors", text=f"{uuid}: {more:.0f} {words} during the launch"))
    findings += [
        Finding(kind="xid", text=f"{event.uuid or 'a device of this node'}: {event.text}")
        for event in trace.events
        if event.kind == "xid" and (event.uuid is None or event.uuid in ours)
    ]
    for window in windows:
        limits_w = set(window.series("power_limit_w").values)
        if len(limits_w) > 1:
            told = " and ".join(f"{limit_w:g} W" for limit_w in sorted(limits_w))
            findings.append(Finding(kind="limit-changed", text=f"{window.uuid}: power limits of {told} in one launch"))
    return findings


def suspended(trace: Trace, windows: Sequence[DeviceWindow]) -> str | None:
    """Whether the machine slept within a window, in words: its steps then took the time of the sleep, or none."""
    for event in trace.events:
        if event.kind != "suspended":
            continue
        since_ns = event.mono_ns - _LOOKS_NS
        if any(since_ns <= window.end_ns and event.mono_ns >= window.begin_ns for window in windows):
            return event.text
    return None


def slow_devices(windows: Sequence[DeviceWindow]) -> list[Finding]:
    """Devices that run slower than the others, by UUID and slot, with what held them back.

    Ranks wait for each other, so their step times are alike whichever is slow: only the clocks tell.
    """
    clocks = {window.uuid: power.sm_clock(window).value for window in windows}
    findings = []
    for window in windows:
        mine = clocks[window.uuid]
        others = [mhz for uuid, mhz in clocks.items() if uuid != window.uuid and mhz is not None]
        if mine is None or len(others) < OTHERS_NEEDED or mine >= (1 - SLOW_CLOCK) * statistics.median(others):
            continue
        where = f"{window.uuid} in slot {window.line.pci}" if window.line.pci else window.uuid
        text = (
            f"{where}: SM clock {mine:,.0f} MHz, the others {statistics.median(others):,.0f}; {_why(window, windows)}"
        )
        findings.append(Finding(kind="slow-device", text=text))
    return findings


def _why(window: DeviceWindow, windows: Sequence[DeviceWindow]) -> str:
    told = []
    limit_w = window.line.power_limit_w
    limits_w = [each.line.power_limit_w for each in windows if each.line.power_limit_w is not None]
    if limit_w is not None and limit_w < statistics.median(limits_w):
        told.append(f"power limit {limit_w:g} W, the others {statistics.median(limits_w):g}")
    shares = {words: power.throttle_share(window, quantity).value for quantity, words in _CAUSES.items()}
    told += [
        f"{words} {100 * share:.0f} % of the window"
        for words, share in shares.items()
        if share is not None and share >= _CAUSE_SHARE
    ]
    unknown = all(share is None for share in shares.values())
    return "; ".join(told) or ("no throttle counter to ask" if unknown else "nothing throttles it: are clocks locked?")
