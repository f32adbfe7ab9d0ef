"""Telemetry: the lines of a sampler's file, and a whole file as read back. Units are in the quantity names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_charllm.errors import BadRecord
from pytest_charllm.records.base import SCHEMA, Record, from_json

QUANTITIES = {
    "power_instant_w": "board power now, GPU scope",
    "power_average_w": "board power, 1 s average by the driver",
    "energy_j": "board energy counter since driver load",
    "core_temp_c": "GPU core temperature",
    "hbm_temp_c": "memory temperature",
    "margin_c": "degrees left to the nearest slowdown; may be 0 or negative",
    "sm_clock_mhz": "SM clock",
    "mem_clock_mhz": "memory clock",
    "event_reasons": "bit mask of clock event reasons at this instant",
    "throttle_power_cap_ns": "time under the software power cap, cumulative",
    "throttle_sw_thermal_ns": "time under software thermal slowdown, cumulative",
    "throttle_hw_thermal_ns": "time under hardware thermal slowdown, cumulative",
    "throttle_hw_brake_ns": "time under the hardware power brake, cumulative",
    "power_limit_w": "enforced power limit",
    "package_energy_j": "CPU package energy counter (RAPL), wraps removed",
    "package_temp_c": "CPU package temperature",
    "cpu_clock_mhz": "mean CPU clock",
}
"""Every quantity a source may answer, by id."""


class TelemetryLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="line"):
    """One JSON line of a telemetry file."""


class Meta(TelemetryLine, frozen=True, kw_only=True, tag="meta"):
    """First line: who samples, when, from what. `period_s` is the nominal spacing of samples."""

    schema: int = SCHEMA
    source: str
    """"nvml", "cpu", "replay:<name>" or "simulated:<name>"."""
    host: str
    period_s: float
    pid: int
    mono_ns: int
    wall_s: float
    library: str | None = None
    driver: str | None = None


class DeviceLine(TelemetryLine, frozen=True, kw_only=True, tag="device"):
    """A device that will be sampled. `capabilities`: quantity -> "ok" or the reason it cannot be read."""

    uuid: str
    name: str
    pci: str | None = None
    power_limit_w: float | None = None
    slowdown_temp_c: float | None = None
    shutdown_temp_c: float | None = None
    slowdown_tlimit_c: float | None = None
    """Slowdown as degrees left to the highest operating temperature, so negative where it lies above it."""
    shutdown_tlimit_c: float | None = None
    refresh_s: float = 0.1
    """How often the counter and the power reading change; a read more often returns the same value."""
    semantics: dict[str, str] = {}
    """quantity -> what it means here, e.g. power_instant_w -> "instant, GPU scope"; energy_j -> "counter"."""
    capabilities: dict[str, str] = {}


class SampleLine(TelemetryLine, frozen=True, kw_only=True, tag="sample", omit_defaults=True):
    """One pass over one device. A quantity that could not be read is null in `values`, its reason in `missing`."""

    uuid: str
    mono_ns: int
    """Midpoint of the calls."""
    latency_ns: int
    values: dict[str, float | None]
    missing: dict[str, str] = {}


class EventLine(TelemetryLine, frozen=True, kw_only=True, tag="event"):
    """Anything that happened to the sampler or a device: "gap", "error", "lost", "slowed", "anchor", "processes".

    "duplicates" is added on reading, for samples that were dropped.
    """

    kind: str
    mono_ns: int
    text: str
    uuid: str | None = None
    wall_s: float | None = None


class EndLine(TelemetryLine, frozen=True, kw_only=True, tag="end"):
    """Last line of a sampler that ended on its own terms; a file without it was cut off."""

    mono_ns: int
    samples: int
    cpu_s: float
    reason: str


Line = Meta | DeviceLine | SampleLine | EventLine | EndLine

_decoder = msgspec.json.Decoder(Line)


def decode_lines(data: bytes, where: str | Path) -> tuple[Meta, list[Line], int]:
    """A telemetry file's first line, the lines after it, and how many were torn off at the end (0 or 1).

    Only an unfinished last line may be broken: its writer was killed. Anything else raises `BadRecord` with its line
    number, a foreign schema before all.
    """
    rows = data.split(b"\n")
    torn = int(bool(rows.pop()))
    if not rows:
        raise BadRecord(f"{where}: no whole line in it: its sampler died at once; record it again")
    meta = from_json(rows[0], Meta, f"{where}: line 1")
    lines: list[Line] = []
    try:
        for row in rows[1:]:
            lines.append(_decoder.decode(row))
    except msgspec.DecodeError as error:
        raise BadRecord(f"{where}: line {len(lines) + 2}: {error}; record it again") from None
    return meta, lines, torn


class Trace(Record, frozen=True, kw_only=True):
    """A telemetry file as read back. `torn_lines` were dropped at the tail; `samples` are in time order per device."""

    meta: Meta
    devices: dict[str, DeviceLine]
    samples: dict[str, tuple[SampleLine, ...]]
    events: tuple[EventLine, ...] = ()
    end: EndLine | None = None
    torn_lines: int = 0
