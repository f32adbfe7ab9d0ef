"""Findings about a launch that are not about its step series: the sampler, the devices, the launch's own notes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Launch, Pass, Trace
from pytest_charllm.records.faults import format_fault

CAPPED_SHARE = 0.97
"""From this share of the power limit on the card is held back by it: clocks will move, not watts."""

_EVENT_KINDS = {
    "gap": "telemetry-gap",
    "slowed": "telemetry-slowed",
    "error": "telemetry-error",
    "lost": "device-lost",
    "processes": "foreign-process",
}


def spoiled(trace: Trace | None, windows: Sequence[DeviceWindow]) -> str | None:
    """Why telemetry says that a measurement on these devices must not be used, or None."""
    ours = {window.uuid for window in windows}
    for event in trace.events if trace is not None else ():
        if event.uuid is not None and event.uuid not in ours:
            continue
        if event.kind == "lost":
            return f"device lost: {_told(event.uuid, event.text)}"
        if event.kind == "processes":
            return f"another process on the device: {_told(event.uuid, event.text)}"
    return None


def sampler_findings(trace: Trace) -> list[Finding]:
    """Events of the sampler, and whether its file is whole."""
    findings = [
        Finding(kind=_EVENT_KINDS[event.kind], text=_told(event.uuid, event.text))
        for event in trace.events
        if event.kind in _EVENT_KINDS
    ]
    if trace.end is None:
        torn = f", {trace.torn_lines} torn" if trace.torn_lines else ""
        findings.append(Finding(kind="telemetry-cut-off", text=f"the sampler did not end on its own terms{torn}"))
    return findings


def step_parts(launch: Launch) -> list[Finding]:
    """Where the engine's own timers say that rank 0's step goes. Never judged: they wait for the device."""
    parts_s = launch.ranks[0].parts_s
    told = ", ".join(f"{part} {1e3 * seconds:.3g} ms" for part, seconds in parts_s.items())
    text = f"by {launch.scenario.engine}'s own timers, rank 0, in the diagnostic pass: {told}"
    return [Finding(kind="step-parts", text=text)] if parts_s else []


def power_capped(windows: Sequence[DeviceWindow], mean_power_w: float | None) -> list[Finding]:
    """Whether the devices' mean power is at their mean limit."""
    limits_w = [window.line.power_limit_w for window in windows if window.line.power_limit_w is not None]
    if mean_power_w is None or not limits_w or len(limits_w) < len(windows):
        return []
    limit_w = statistics.fmean(limits_w)
    if mean_power_w < CAPPED_SHARE * limit_w:
        return []
    percent = 100 * mean_power_w / limit_w
    text = f"mean power of {mean_power_w:.0f} W is {percent:.0f} % of the limit of {limit_w:.0f} W"
    return [Finding(kind="power-capped", text=text)]


def launch_findings(launch: Launch) -> list[Finding]:
    """The notes of launcher and ranks, and what was injected on purpose, which the timed launches have measured."""
    faults = () if launch.pass_ is Pass.TRACED else launch.faults
    # What it came to is told once, over all launches, above the numbers.
    findings = [Finding(kind="injected", text=format_fault(fault)) for fault in faults]
    for note in launch.notes:
        findings.append(Finding(kind="hung-at-exit" if note.startswith("hung at exit") else "note", text=note))
    for report in launch.ranks:
        findings += [Finding(kind="note", text=f"rank {report.rank}: {note}") for note in report.notes]
    return findings


def _told(uuid: str | None, text: str) -> str:
    return f"{uuid}: {text}" if uuid else text
