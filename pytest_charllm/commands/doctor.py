"""``pytest-charllm doctor``: one page for a bug report, on any machine. Loads no vendor library into this process."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from pytest_charllm import __version__
from pytest_charllm.commands import OK, REFUSED
from pytest_charllm.devices import host, inspection, pci
from pytest_charllm.devices.find import find_machine
from pytest_charllm.devices.inspection import Inspection
from pytest_charllm.devices.open import source_of
from pytest_charllm.errors import BadInput, DeviceError
from pytest_charllm.hardware import Machine
from pytest_charllm.hardware.catalogue import match_name
from pytest_charllm.judge.tolerances import CPU, GATES, rules_for
from pytest_charllm.judge.wording import name
from pytest_charllm.measure.admission import Level, Remark, State, remarks
from pytest_charllm.measure.needs import missing_readings
from pytest_charllm.records import DeviceLine, tier
from pytest_charllm.report.numbers import significant, size
from pytest_charllm.report.text import grid, pairs, section

PACKAGES = ("torch", "deepspeed", "nvidia-ml-py", "amdsmi", "triton", "pytest", "msgspec")
MASKS = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
)  # fmt: skip
_LONGEST = 60


def run_doctor(options: argparse.Namespace) -> int:
    """Print the page. `REFUSED` where a GPU is here that cannot be measured.

    Raises `BadInput` for a source that was named and is none.
    """
    if options.source is not None and not options.source.strip():
        raise BadInput("--source: no source given; name one, or leave the option out")
    machine: Machine | None = None
    said = ""
    try:
        machine = find_machine()
    except DeviceError as error:
        said = str(error)
    source = options.source or (source_of(machine) if machine is not None else "nvml")
    # As the suites do it: what the masks hide is somebody else's, fit or not.
    visible = machine.devices if machine is not None and source == source_of(machine) else ()
    seen = _inspected(source, tuple(device.uuid for device in visible))
    if options.source and seen.bad_input:
        raise BadInput(f"--source: {seen.error}")
    # Where somebody expects a GPU and there is none, the question is what its library said.
    others = [_inspected(other) for other in ("nvml", "amd") if source == "cpu"]
    found = [(line, remark) for line in seen.devices for remark in remarks(_state(seen, line))]
    parts = [
        section("host", pairs(_host())),
        section("software", pairs([("pytest-charllm", __version__), *((each, _version(each)) for each in PACKAGES)])),
        section("machine", pairs(_machine(machine, said))),
        section("telemetry", pairs([*_telemetry(seen), *((other.source, _opened(other)) for other in others)])),
        *(section(f"{line.uuid} ({line.name})", _device(seen, line)) for line in seen.devices),
        section("preflight", _preflight(seen, found)),
        section("what the suites will judge", _judged(seen)),
    ]
    print("\n\n".join(part for part in parts if part))
    refused = any(remark.level is Level.REFUSED for _, remark in found)
    return REFUSED if machine is None or seen.error is not None or refused else OK


def _state(seen: Inspection, line: DeviceLine) -> State:
    alone = len(seen.devices) == 1
    return State(line, seen.snapshots[line.uuid].values, seen.samples[line.uuid].values, alone)


def _host(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    plugged = pci.gpus()
    return [
        ("system", f"{platform.system()} {host.kernel()}, Python {platform.python_version()}"),
        ("processor", f"{host.cpu_model()}, {os.cpu_count()} CPUs"),
        ("container", host.container(environ) or "none"),
        ("PCI bus", ", ".join(f"{gpu.vendor} {gpu.address}" for gpu in plugged) or "no GPU"),
        *((mask, environ[mask] or "empty: hides all") for mask in MASKS if mask in environ),
    ]


def _machine(machine: Machine | None, said: str) -> list[tuple[str, str]]:
    if machine is None:
        return [("refused", said)]
    rows = [("hardware", f"{machine.variant} {machine.shape}")]
    if machine.driver is not None:
        rows.append(
            ("driver", f"{machine.driver}, CUDA {machine.driver_cuda}" if machine.driver_cuda else machine.driver)
        )
    for device in machine.devices:
        parts = [
            device.name,
            device.pci or "no PCI address",
            size(device.memory_bytes) if device.memory_bytes else "memory unknown",
            f"limit {device.power_limit_w:g} W" if device.power_limit_w else "limit unknown",
            f"partition {device.partition}" if device.partition else "whole",
            f"VBIOS {device.vbios}" if device.vbios else "VBIOS unknown",
        ]
        rows.append((device.uuid, ", ".join(parts)))
    return rows


def _telemetry(seen: Inspection) -> list[tuple[str, str]]:
    if seen.error is not None:
        return [("source", seen.source), ("refused", seen.error)]
    return [
        ("source", seen.source),
        ("library", seen.library or "none"),
        ("driver", seen.driver or "none"),
        ("devices", str(len(seen.devices))),
    ]


def _inspected(source: str, uuids: tuple[str, ...] = ()) -> Inspection:
    try:
        return inspection.inspect(source, uuids)
    except DeviceError as error:
        return Inspection(source=source, error=str(error))


def _opened(seen: Inspection) -> str:
    return seen.error or f"opens, with {len(seen.devices)} devices"


def _device(seen: Inspection, line: DeviceLine) -> str:
    """Limits, then each quantity with its value now and its meaning, or the code that came instead; then health."""
    limits = {
        "power limit": (line.power_limit_w, "W"),
        "slowdown": (line.slowdown_temp_c, "degC"),
        "shutdown": (line.shutdown_temp_c, "degC"),
        "slowdown T.Limit": (line.slowdown_tlimit_c, "degC"),
        "shutdown T.Limit": (line.shutdown_tlimit_c, "degC"),
    }
    sample, snapshot = seen.samples[line.uuid], seen.snapshots[line.uuid]
    rows = []
    for quantity, answer in line.capabilities.items():
        value, ring = sample.values.get(quantity), seen.rings.get(line.uuid)
        told = line.semantics.get(quantity, "") if answer == "ok" else answer
        if quantity == "power_ring" and ring is not None:
            value, told = ring.power_w[-1], f"the driver's own record, {len(ring.power_w)} readings just now"
        elif answer == "ok" and value is None:
            told = sample.missing.get(quantity, "no value")
        tempo = "slow" if quantity in line.slow else ""
        read = "ok" if answer == "ok" else "no"
        rows.append((quantity, read, "" if value is None else significant(value), tempo, told))
    health = [
        (entry, _short(snapshot.missing.get(entry, "not told") if value is None else value))
        for entry, value in snapshot.values.items()
    ]
    known = [(label, f"{value:g} {unit}") for label, (value, unit) in limits.items() if value is not None]
    identity = [("PCI", line.pci)] if line.pci else []
    parts = [(f"part {part.uuid}", part.pci or "no PCI address") for part in line.parts]
    return "\n\n".join(
        block
        for block in (
            pairs([*identity, *parts, *known]),
            grid(("quantity", "read", "now", "tier", "meaning, or why not"), rows, ("now",), last_width=_LONGEST),
            pairs(health),
        )
        if block
    )


def _preflight(seen: Inspection, found: list[tuple[DeviceLine, Remark]]) -> str:
    if not seen.devices or seen.source == "cpu":
        return ""
    return pairs([(line.uuid, str(remark)) for line, remark in found]) or "all devices are fit"


def _judged(seen: Inspection) -> str:
    """Each judged metric with what stands against it. The worst device decides: one without a sensor leaves none."""
    if seen.error is not None:
        return "nothing: no telemetry"
    hardware = match_name(seen.devices[0].name) if seen.devices else None
    if hardware is None:
        gates = ", ".join(GATES[metric] for metric in CPU)
        return f"strict checks, and {gates} where speed is on record for this CPU; neither watts nor degrees"
    required = tier("nightly", is_cpu=False).required
    rows = []
    for metric in rules_for(hardware.variant, "nightly", is_cpu=False):
        against = [
            f"{line.uuid}: {why}"
            for line in seen.devices
            if (why := missing_readings(metric, line.capabilities)) is not None
        ]
        if metric == "core_temp_spread" and len(seen.devices) < 2:
            against = ["one device"]
        why_not = against[0] if against else ""
        rows.append((name(metric), "yes" if metric in required else "", "no" if against else "yes", why_not))
    return grid(("metric", "required", "judged", "why not"), rows, last_width=_LONGEST)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _short(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) or "nothing"
