"""Whether a device is fit to be measured, from what it says of itself before any load: one rule a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pytest_charllm.records import DeviceLine

HOT_MARGIN_C = 15.0
"""A board this close to slowdown before there is any load was heated by somebody else, or is not cooled."""
POWER_SLACK_W = 1.0
_APPLICATION_CLOCKS = 0x2
"""NVIDIA's clock event reason: held at application clocks that somebody set."""


class Level(StrEnum):
    """admitted: worth a line. tainted: judged, never a baseline. refused: not measured at all."""

    ADMITTED = "admitted"
    TAINTED = "tainted"
    REFUSED = "refused"


class Remark(NamedTuple):
    """`command` shows it on the machine."""

    level: Level
    text: str
    command: str

    def __str__(self) -> str:
        return f"{self.level}: {self.text} (see {self.command})"


@dataclass(frozen=True)
class State:
    """A device before any load: entries of `records.telemetry.HEALTH`, and one pass over its sensors.

    `alone`: the job runs on no other GPU, so that links do not matter.
    """

    line: DeviceLine
    health: Mapping[str, float | str | None]
    sensors: Mapping[str, float | None]
    alone: bool

    def number(self, entry: str) -> float | None:
        value = self.health.get(entry)
        return float(value) if isinstance(value, float | int) else None

    def show(self, topic: str) -> str:
        """The command that shows this topic of this device."""
        nvidia, amd = _COMMANDS[topic]
        return amd if self.line.name.startswith("AMD") else f"{nvidia} -i {self.line.uuid}"


_COMMANDS = {
    "power": ("nvidia-smi -q -d POWER", "amd-smi static --limit"),
    "clocks": ("nvidia-smi -q -d CLOCK,PERFORMANCE", "amd-smi metric --clock"),
    "memory": ("nvidia-smi -q -d ECC,ROW_REMAPPER", "amd-smi metric --ecc"),
    "links": ("nvidia-smi nvlink --status", "amd-smi xgmi --link-status"),
    "temperature": ("nvidia-smi -q -d TEMPERATURE", "amd-smi metric --temperature"),
    "mode": ("nvidia-smi -q", "amd-smi static --partition"),
}
"""Topic -> NVIDIA's command, AMD's."""


def remarks(state: State) -> list[Remark]:
    """Everything worth saying of this device, the gravest first. What it does not tell is no reason against it."""
    found = [remark for rule in RULES if (remark := rule(state)) is not None]
    return sorted(found, key=lambda remark: list(Level).index(remark.level), reverse=True)


def remap_failed(state: State) -> Remark | None:
    if not state.number("remap_failed"):
        return None
    return Remark(Level.REFUSED, "a memory row could not be remapped: have the board replaced", state.show("memory"))


def remap_pending(state: State) -> Remark | None:
    if not state.number("remap_pending"):
        return None
    return Remark(Level.TAINTED, "a memory row waits to be remapped: reset the GPU", state.show("memory"))


def memory_errors(state: State) -> Remark | None:
    errors = state.number("ecc_uncorrected")
    if not errors:
        return None
    text = f"{errors:.0f} uncorrected memory errors since the driver was loaded"
    return Remark(Level.ADMITTED, text, state.show("memory"))


def partitioned(state: State) -> Remark | None:
    mode = state.health.get("partition")
    if not isinstance(mode, str) or mode.lower() != "mig":
        return None
    text = "MIG is on: power and heat are those of all its instances; switch it off with nvidia-smi -mig 0"
    return Remark(Level.REFUSED, text, state.show("mode"))


def links_down(state: State) -> Remark | None:
    links, active = state.number("link_count"), state.number("links_active")
    if not links or active is None or active >= links:
        return None
    if not active:
        return Remark(Level.ADMITTED, "none of its links is up: ranks talk over PCIe", state.show("links"))
    level = Level.TAINTED if state.alone else Level.REFUSED
    return Remark(level, f"{active:.0f} of {links:.0f} links are up", state.show("links"))


def fabric_down(state: State) -> Remark | None:
    stage, flaws = state.health.get("fabric_state"), state.health.get("fabric_health")
    level = Level.ADMITTED if state.alone else Level.REFUSED
    if stage in ("not started", "in progress"):
        return Remark(level, f"the NVSwitch fabric is {stage}: look after the fabric manager", state.show("mode"))
    if stage == "completed" and flaws:
        return Remark(level, f"the NVSwitch fabric is not healthy: {flaws}", state.show("mode"))
    return None


def power_limited(state: State) -> Remark | None:
    limit_w, default_w = state.line.power_limit_w, state.number("default_power_limit_w")
    if limit_w is None or default_w is None or limit_w >= default_w - POWER_SLACK_W:
        return None
    text = f"power limit {limit_w:g} W, below its default of {default_w:g} W: compared with such numbers only"
    return Remark(Level.ADMITTED, text, state.show("power"))


def clocks_set(state: State) -> Remark | None:
    mask = state.sensors.get("event_reasons")
    if mask is None or state.line.name.startswith("AMD") or not int(mask) & _APPLICATION_CLOCKS:
        return None
    return Remark(Level.TAINTED, "held at application clocks: nvidia-smi -rac resets them", state.show("clocks"))


def hot(state: State) -> Remark | None:
    margin_c, core_c = state.sensors.get("margin_c"), state.sensors.get("core_temp_c")
    if margin_c is None and core_c is not None and state.line.slowdown_temp_c is not None:
        margin_c = state.line.slowdown_temp_c - core_c
    if margin_c is None or margin_c >= HOT_MARGIN_C:
        return None
    text = f"hot before any load: {margin_c:.0f} degC below slowdown, {HOT_MARGIN_C:g} are needed"
    return Remark(Level.TAINTED, text, state.show("temperature"))


def not_persistent(state: State) -> Remark | None:
    if state.number("persistence") != 0:
        return None
    text = "persistence mode is off: the driver is loaded anew for each launch, and its counters start again"
    return Remark(Level.ADMITTED, text, state.show("mode"))


RULES: tuple[Callable[[State], Remark | None], ...] = (
    remap_failed, partitioned, links_down, fabric_down, remap_pending, clocks_set, hot, power_limited, memory_errors,
    not_persistent,
)  # fmt: skip
