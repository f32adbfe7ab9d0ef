"""Health of an NVIDIA GPU: memory errors, links, fabric. Read before and after, never in a loop."""

from __future__ import annotations

from ctypes import byref
from typing import Any

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml_calls import NvmlError, Raw, call, read_fields
from pytest_charllm.records.telemetry import SnapshotLine

_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_FLAWS = (
    ("degraded bandwidth", 0), ("route recovery", 2), ("route unhealthy", 4), ("access timeout recovery", 6),
)  # fmt: skip
"""Name and lowest bit of each two-bit entry of the health mask; 1 means true."""
_CONFIGURATION_BIT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, (0, 1)
_LINK_UP = 1


def health(nvml: Any, handle: Any, uuid: str, when: str, mono_ns: int) -> SnapshotLine:
    """What this GPU and driver tell of themselves; the rest is None with the code that came instead."""
    values: dict[str, float | str | None] = {}
    missing: dict[str, str] = {}
    for entry, fields in table.HEALTH_FIELDS.items():
        answers = _fields(nvml, handle, fields)
        known = [answer.value for answer in answers if isinstance(answer, Raw)]
        values[entry] = float(sum(known)) if known else None
        if not known:
            missing[entry] = ", ".join(f"{field}: {answer}" for field, answer in zip(fields, answers, strict=True))
    for entry, function, args, per_unit in (
        ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1),
        ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1),
        ("default_power_limit_w", "nvmlDeviceGetPowerManagementDefaultLimit", (), 1000),
        ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (table.CLOCK_SM,), 1),
        ("persistence", "nvmlDeviceGetPersistenceMode", (), 1),
    ):
        try:
            values[entry] = call(nvml, function, handle, *args) / per_unit
        except NvmlError as refused:
            values[entry], missing[entry] = None, f"{function}: {refused}"
    links = values["link_count"]
    values["links_active"] = _active(nvml, handle, int(links)) if isinstance(links, float) else None
    if values["links_active"] is None:
        missing["links_active"] = missing.get("link_count", "nvmlDeviceGetNvLinkState does not answer")
    try:
        values["partition"] = "mig" if call(nvml, "nvmlDeviceGetMigMode", handle)[0] else "none"
    except NvmlError as refused:
        values["partition"], missing["partition"] = None, f"nvmlDeviceGetMigMode: {refused}"
    _fabric(nvml, handle, values, missing)
    return SnapshotLine(uuid=uuid, when=when, mono_ns=mono_ns, values=values, missing=missing)


def _fields(nvml: Any, handle: Any, fields: tuple[table.Field, ...]) -> list[Raw | NvmlError | str]:
    try:
        return read_fields(nvml, handle, fields)
    except NvmlError as refused:
        return [refused] * len(fields)


def _active(nvml: Any, handle: Any, links: int) -> float | None:
    states = []
    for link in range(links):
        try:
            states.append(call(nvml, "nvmlDeviceGetNvLinkState", handle, link))
        except NvmlError:
            return None
    return float(states.count(_LINK_UP))


def _fabric(nvml: Any, handle: Any, values: dict[str, float | str | None], missing: dict[str, str]) -> None:
    values["fabric_state"] = values["fabric_health"] = None
    structure = getattr(nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    try:
        if structure is None:
            raise NvmlError(table.FUNCTION_NOT_FOUND)
        info = structure()
        # The binding hands on what it is given: a structure itself would go by value, and the driver crash on it.
        call(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
    except NvmlError as refused:
        missing["fabric_state"] = missing["fabric_health"] = f"nvmlDeviceGetGpuFabricInfoV: {refused}"
        return
    values["fabric_state"] = _FABRIC_STATES.get(info.state, f"state {info.state}")
    flaws = [name for name, bit in _FABRIC_FLAWS if info.healthMask >> bit & 0b11 == 1]
    if info.healthMask >> _CONFIGURATION_BIT & _CONFIGURATION_MASK not in _CONFIGURATION_GOOD:
        flaws.append("incorrect configuration")
    if info.status != table.SUCCESS:
        flaws.append(table.code_name(info.status))
    values["fabric_health"] = ", ".join(flaws)
