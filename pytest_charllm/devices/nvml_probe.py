"""What one NVIDIA GPU is and which reads it answers: asked once, when a source opens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml_calls import NvmlError, Raw, call, optional, read_fields, text
from pytest_charllm.devices.nvml_fields import SCOPE_GPU, Call, Field
from pytest_charllm.devices.nvml_gpm import Gpm, PowerRing
from pytest_charllm.devices.nvml_throttle import BITS, SAMPLED, SampledThrottle
from pytest_charllm.devices.pci import sysfs_address
from pytest_charllm.devices.plausible import Plausible
from pytest_charllm.devices.wrap import Unwrapped
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, Part

_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""By PCIe generation, one direction."""
_LONGEST_GAP_S = 0.2
"""Between two passes of a window, with jitter and a dear read put off: a counter must not be able to wrap within it."""
_STEADY = ("power_limit_w", "mem_clock_mhz")
"""Cheap to read, but the same from one second to the next: ten times a second the clock is 4 % of all sampling."""
TO_THRESHOLD = "slowdown threshold minus core temperature"
"""The margin of drivers before 570, which tell none."""

_SUPERCHIP = re.compile(r"\bG[HB]\d+")


class Probed(NamedTuple):
    line: DeviceLine
    reads: dict[str, Field | Call]
    plausible: Plausible
    wraps: dict[str, Unwrapped]
    sampled: SampledThrottle
    gpm: Gpm | None
    ring: PowerRing | None


def probe(nvml: Any, handle: Any, parts: tuple[Part, ...], clock: Callable[[], int]) -> Probed:
    """Raises `DeviceError` for a GPU that does not even tell its name."""
    try:
        uuid, name = text(call(nvml, "nvmlDeviceGetUUID", handle)), text(call(nvml, "nvmlDeviceGetName", handle))
    except NvmlError as refused:
        raise DeviceError(refused.explain("NVML does not name a GPU it opened")) from None
    reads: dict[str, Field | Call] = {}
    wraps: dict[str, Unwrapped] = {}
    capabilities: dict[str, str] = {}
    for quantity in table.READS:
        read, reason = _first_answering(nvml, handle, quantity)
        if read is not None and quantity in table.MAY_WRAP and _is_narrow(nvml, handle, read):
            wraps[quantity] = Unwrapped(_pcie_bytes_per_s(nvml, handle))
            if wraps[quantity].provable_s <= _LONGEST_GAP_S:
                milliseconds = 1e3 * wraps.pop(quantity).provable_s
                read, reason = None, f"{read}: a 32-bit counter that this link can wrap in {milliseconds:.0f} ms"
        capabilities[quantity] = reason
        if read is not None:
            reads[quantity] = read
    without = frozenset(q for q in BITS if q not in reads) if "event_reasons" in reads else frozenset()
    capabilities |= dict.fromkeys(without, "ok")
    gpm, ring, told = extras(nvml, handle, uuid, clock)
    capabilities |= told
    slowdown_c = optional(nvml, "nvmlDeviceGetTemperatureThreshold", handle, table.THRESHOLD_SLOWDOWN)
    to_threshold = "margin_c" not in reads and "core_temp_c" in reads and slowdown_c is not None
    if to_threshold:
        capabilities["margin_c"] = "ok"
    pci = optional(nvml, "nvmlDeviceGetPciInfo", handle)
    enforced_w = once(nvml, handle, reads["power_limit_w"]) if "power_limit_w" in reads else None
    dear = [quantity for quantity, read in reads.items() if read.dear]
    seldom = _STEADY if without else (*_STEADY, "event_reasons")  # no time is made of the bits
    line = DeviceLine(
        uuid=uuid,
        name=name,
        pci=sysfs_address(text(pci.busId)) if pci else None,
        power_limit_w=enforced_w,
        slowdown_temp_c=slowdown_c,
        shutdown_temp_c=optional(nvml, "nvmlDeviceGetTemperatureThreshold", handle, table.THRESHOLD_SHUTDOWN),
        slowdown_tlimit_c=once(nvml, handle, Field(table.FIELD_SLOWDOWN_TLIMIT)),
        shutdown_tlimit_c=once(nvml, handle, Field(table.FIELD_SHUTDOWN_TLIMIT)),
        semantics=_semantics(name, reads)
        | dict.fromkeys(without, SAMPLED)
        | ({"margin_c": TO_THRESHOLD} if to_threshold else {}),
        capabilities=capabilities,
        slow=(*dear, *(q for q in seldom if q in reads), *(table.GPM if gpm is not None else ())),
        parts=parts,
    )
    plausible = Plausible(
        power_limit_w=once(nvml, handle, Field(table.FIELD_POWER_MAX_LIMIT, per_unit=1000)) or enforced_w,
        sm_clock_max_mhz=optional(nvml, "nvmlDeviceGetMaxClockInfo", handle, table.CLOCK_SM),
        mem_clock_max_mhz=optional(nvml, "nvmlDeviceGetMaxClockInfo", handle, table.CLOCK_MEM),
    )
    return Probed(line, reads, plausible, wraps, SampledThrottle(without), gpm, ring)


def _semantics(name: str, reads: dict[str, Field | Call]) -> dict[str, str]:
    """A superchip's energy counter is that of the whole module, CPU included, and does not say so."""
    told = {quantity: read.meaning for quantity, read in reads.items() if read.meaning}
    power = reads.get("power_instant_w")
    if "energy_j" in told and (_SUPERCHIP.search(name) or (isinstance(power, Field) and power.scope != SCOPE_GPU)):
        told["energy_j"] = "counter, module scope"
    return told


def extras(
    nvml: Any, handle: Any, uuid: str, clock: Callable[[], int]
) -> tuple[Gpm | None, PowerRing | None, dict[str, str]]:
    """What newer GPUs have besides, with its capabilities. To be asked again once the library was started anew."""
    gpm = ring = None
    told = dict.fromkeys((*table.GPM, "power_ring"), "ok")
    try:
        gpm = Gpm(nvml, handle, clock)
    except Exception as error:  # refused, or a binding of other structures: an extra must not cost the rest
        told |= dict.fromkeys(table.GPM, f"GPM: {_said(error)}")
    try:
        ring = PowerRing(nvml, handle, uuid)
    except Exception as error:
        told["power_ring"] = f"nvmlDeviceGetSamples: {_said(error)}"
    return gpm, ring, told


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, NvmlError) else f"{type(error).__name__}: {error}"


def once(nvml: Any, handle: Any, read: Field | Call) -> float | None:
    answer = ask(nvml, handle, read)
    return None if isinstance(answer, NvmlError | str) else answer


def _first_answering(nvml: Any, handle: Any, quantity: str) -> tuple[Field | Call | None, str]:
    """The first read that answers and "ok", else None and why none does.

    Fields are asked one at a time here: one that an old driver does not know cannot spoil a batch.
    """
    reasons = []
    for read in table.READS[quantity]:
        answer = ask(nvml, handle, read)
        if isinstance(answer, NvmlError | str):
            reasons.append(f"{read}: {answer}")
        elif quantity == "hbm_temp_c" and answer == 0:
            reasons.append(f"{read}: 0 degC, the board has no sensor")
        else:
            return read, "ok"
    return None, "; ".join(reasons)


def ask(nvml: Any, handle: Any, read: Field | Call) -> float | NvmlError | str:
    """One read by itself, in the unit of its quantity."""
    if isinstance(read, Call):
        return ask_call(nvml, handle, read)
    try:
        (answer,) = read_fields(nvml, handle, [read])
    except NvmlError as refused:
        return refused
    return answer.value / read.per_unit if isinstance(answer, Raw) else answer


def ask_call(nvml: Any, handle: Any, read: Call) -> float | NvmlError:
    """One read through a function of its own, in the unit of its quantity."""
    try:
        answer = call(nvml, read.function, handle, *read.args)
    except NvmlError as refused:
        return refused
    raw = getattr(answer, read.attribute) if read.attribute else answer
    return float(raw / read.per_unit)


def _is_narrow(nvml: Any, handle: Any, read: Field | Call) -> bool:
    if not isinstance(read, Field):
        return False
    (answer,) = read_fields(nvml, handle, [read])
    return isinstance(answer, Raw) and answer.type == table.VALUE_UINT


def _pcie_bytes_per_s(nvml: Any, handle: Any) -> float:
    """Of the widest and fastest link this GPU can have; the fastest there is where it does not tell."""
    generation = optional(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle) or max(_LANE_BYTES_PER_S)
    lanes = optional(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle) or 16
    return _LANE_BYTES_PER_S.get(generation, max(_LANE_BYTES_PER_S.values())) * lanes
