"""What befell the devices while they were measured: errors of memory and links, a suspended machine, one held back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.measure import power
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Trace

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

_CAUSES = {
    "throttle_power_cap_ns": "power cap",
    "throttle_sw_thermal_ns": "thermal slowdown",
    "throttle_hw_thermal_ns": "hardware thermal slowdown",
    "throttle_hw_brake_ns": "power brake",
}
_CAUSE_SHARE = 0.01


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
        Finding(kind="xid", text=f"{event.uuid}: {event.text}")
        for event in trace.events
        if event.kind == "xid" and event.uuid in ours
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
        if event.kind == "suspended" and any(w.begin_ns <= event.mono_ns <= w.end_ns for w in windows):
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
