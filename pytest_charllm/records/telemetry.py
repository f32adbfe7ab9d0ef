"""Telemetry: the lines of a sampler's file, and a whole file as read back. Units are in the quantity names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pytest_charllm.errors import BadRecord
from pytest_charllm.records.base import SCHEMA, Record, from_json

if TYPE_CHECKING:
    from pathlib import Path

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
    "throttle_sync_boost_ns": "time held back by the slowest GPU of a sync boost group, cumulative",
    "throttled": "1 where the driver says that something throttles at this instant, not what; else 0",
    "power_limit_w": "enforced power limit",
    "link_tx_kib": "data sent over NVLink or xGMI, all links together, cumulative",
    "link_rx_kib": "data received over NVLink or xGMI, all links together, cumulative",
    "pcie_tx_kib": "data sent over PCIe, cumulative",
    "pcie_rx_kib": "data received over PCIe, cumulative",
    "link_tx_mib_per_s": "NVLink sending, mean since the read before",
    "link_rx_mib_per_s": "NVLink receiving, mean since the read before",
    "pcie_tx_mib_per_s": "PCIe sending, mean since the read before",
    "pcie_rx_mib_per_s": "PCIe receiving, mean since the read before",
    "sm_active_share": "SMs with work, share of time and of SMs since the read before",
    "tensor_active_share": "tensor cores at work, share of time since the read before",
    "dram_active_share": "memory bandwidth used, share of the peak since the read before",
    "package_energy_j": "CPU package energy counter (RAPL), wraps removed",
    "package_temp_c": "CPU package temperature",
    "cpu_clock_mhz": "mean CPU clock",
}
"""Every quantity a source may answer, by id."""

CUMULATIVE = frozenset(name for name, meaning in QUANTITIES.items() if "cumulative" in meaning) | {
    "energy_j", "package_energy_j",
}  # fmt: skip
"""Counters: only their differences mean something, and they never fall unless they were reset."""

HEALTH = {
    "ecc_corrected": "corrected memory errors since the driver was loaded",
    "ecc_uncorrected": "uncorrected memory errors since the driver was loaded",
    "remapped_rows": "memory rows remapped in the life of the board",
    "remap_pending": "1 where a remapping or page retirement waits for a reset",
    "remap_failed": "1 where a remapping failed",
    "pcie_replays": "PCIe packets sent again",
    "pcie_errors": "PCIe errors, corrected and not",
    "pcie_generation": "PCIe generation of the link now; falls while idle",
    "pcie_width": "PCIe lanes of the link now",
    "link_count": "NVLinks of the board",
    "links_active": "NVLinks that are up",
    "link_errors": "NVLink errors: CRC, replay, recovery",
    "fabric_state": "state of the NVSwitch fabric: not supported, not started, in progress, completed",
    "fabric_health": "what is wrong with the fabric, comma separated; empty where nothing is",
    "default_power_limit_w": "power limit the board came with",
    "sm_clock_max_mhz": "highest SM clock of the board",
    "persistence": "1 where the driver stays loaded without clients",
    "partition": "MIG or compute partition mode",
}
"""Every entry of a snapshot, by id."""


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
    slow_period_s: float | None = None
    """Spacing of the quantities that a device lists as `slow`, away from announced edges; None: none are."""


class Part(Record, frozen=True, kw_only=True):
    """A GPU as programs see it that is only a part of a physical one: an MI250 die, a MIG or compute partition."""

    uuid: str
    pci: str | None = None


class DeviceLine(TelemetryLine, frozen=True, kw_only=True, tag="device"):
    """A physical device that will be sampled. `capabilities`: quantity -> "ok" or the reason it cannot be read.

    Where programs see several GPUs in one physical package, that package is one device with all of them as `parts`:
    its power and energy are theirs together and cannot be told apart; temperatures are those of the hottest part,
    clocks the mean.
    """

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
    slow: tuple[str, ...] = ()
    """Quantities that cost milliseconds to read, hardly change, or say no more than a counter does: once in
    `Meta.slow_period_s`, near edges energy and bytes sent at every pass."""
    parts: tuple[Part, ...] = ()

    def is_or_holds(self, uuid: str | None, pci: str | None) -> bool:
        """Whether a rank that names its GPU by UUID or PCI address runs on this device."""
        names = {self.uuid, *(part.uuid for part in self.parts)}
        addresses = {_address(each) for each in (self.pci, *(part.pci for part in self.parts)) if each is not None}
        return uuid in names or (pci is not None and _address(pci) in addresses)


class SampleLine(TelemetryLine, frozen=True, kw_only=True, tag="sample", omit_defaults=True):
    """One pass over one device. A quantity that could not be read is null in `values`, its reason in `missing`."""

    uuid: str
    mono_ns: int
    """Midpoint of the calls."""
    latency_ns: int
    values: dict[str, float | None]
    missing: dict[str, str] = {}
    at_ns: dict[str, int] = {}
    """quantity -> when its value was true, where the device stamps it by itself. On the same clock."""


class SnapshotLine(TelemetryLine, frozen=True, kw_only=True, tag="snapshot", omit_defaults=True):
    """Health of one device before or after everything else: entries of `HEALTH`, null with a reason in `missing`."""

    uuid: str
    when: str
    """"start" or "end"."""
    mono_ns: int
    values: dict[str, float | str | None]
    missing: dict[str, str] = {}


class RingLine(TelemetryLine, frozen=True, kw_only=True, tag="ring"):
    """What the driver kept by itself: power of the whole board, many readings between two samples."""

    uuid: str
    mono_ns: tuple[int, ...]
    power_w: tuple[float, ...]


class EventLine(TelemetryLine, frozen=True, kw_only=True, tag="event"):
    """Anything that happened to the sampler or a device.

    "gap": a read did not return for a while. "lost": the device is given up. "error": the reader of a device failed.
    "slowed": passes took too long, so there are fewer. "restarted": the driver's library was started anew. "xid": the
    driver reported an error of the device. "processes": somebody else computes on it. "anchor": one instant on all
    clocks. "clock-stepped", "suspended": what the anchors gave away. "dense": energy and bytes sent over links are
    read at every pass. "rest": nothing is judged, so there are as few passes as it says, until "near" or "dense".
    "near": nothing is judged yet, so that there are as few passes as it says, until "dense". "duplicates" is added on
    reading, for samples that were dropped.
    """

    kind: str
    mono_ns: int
    text: str
    uuid: str | None = None
    wall_s: float | None = None
    boot_ns: int | None = None
    """CLOCK_BOOTTIME: runs on while the machine is suspended."""


class DevicePace(Record, frozen=True, kw_only=True):
    """How one device was sampled: passes made, spacing at the end, how long a pass took."""

    passes: int
    period_s: float
    latency_p50_ns: int
    latency_p95_ns: int
    latency_max_ns: int


class EndLine(TelemetryLine, frozen=True, kw_only=True, tag="end"):
    """Last line of a sampler that ended on its own terms; a file without it was cut off."""

    mono_ns: int
    samples: int
    cpu_s: float
    reason: str
    pace: dict[str, DevicePace] = {}
    """By device."""


Line = Meta | DeviceLine | SampleLine | SnapshotLine | RingLine | EventLine | EndLine

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
    snapshots: tuple[SnapshotLine, ...] = ()
    power_ring: dict[str, tuple[tuple[int, float], ...]] = {}
    """By device: (CLOCK_MONOTONIC ns, W) as the driver kept them, in time order."""

    def device_of(self, uuid: str | None, pci: str | None = None) -> DeviceLine | None:
        """The physical device of a rank that names its GPU by UUID or PCI address; None where it was not sampled."""
        return next((device for device in self.devices.values() if device.is_or_holds(uuid, pci)), None)


def _address(pci: str) -> str:
    """An address in one spelling: tools write its domain with four digits or with eight."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"
