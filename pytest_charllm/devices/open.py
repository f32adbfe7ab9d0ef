"""Which source answers to which name. Each is loaded only when it is asked for, and so is what only the launcher asks:
importing is a good part of what a sampler costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_charllm.devices.source import TelemetrySource
from pytest_charllm.errors import BadInput

if TYPE_CHECKING:
    from pytest_charllm.hardware.machine import Machine


def source_of(machine: Machine) -> str:
    """The source that reads this machine's devices. Raises `BadInput` for a simulated one without a simulation."""
    if machine.is_cpu:
        return "cpu"
    if machine.simulated:
        return f"simulated:{profile_of(machine.variant)}"
    from pytest_charllm.hardware.catalogue import CATALOGUE

    return "amd" if CATALOGUE[machine.variant].vendor == "amd" else "nvml"


def profile_of(variant: str) -> str:
    """The name of the simulated board that its driver calls by a name of this variant."""
    from pytest_charllm.devices.simulated.board import PROFILES
    from pytest_charllm.hardware.catalogue import CATALOGUE, match_name

    for name, profile in PROFILES.items():
        if CATALOGUE[variant].is_named(profile.title):
            return name
    known = ", ".join(hardware.variant for each in PROFILES.values() if (hardware := match_name(each.title)))
    raise BadInput(f"no simulation of {variant}: there are {known}")


def open_source(kind: str, uuids: tuple[str, ...]) -> TelemetrySource:
    """Open "nvml", "amd", "cpu", "replay:<path>" or "simulated:<profile>" for these devices, for all it has if none.

    Opens vendor libraries, so it belongs in a process that can be given up. Raises `DeviceError` where the library
    or a named device is absent, `BadInput` for an unknown kind, and `BadRecord` for a broken recording.
    """
    name, _, argument = kind.partition(":")
    if name == "nvml" and not argument:
        from pytest_charllm.devices.nvml import NvmlSource
        from pytest_charllm.devices.nvml_calls import load_nvml

        return NvmlSource(load_nvml(), uuids)
    if name == "amd" and not argument:
        from pytest_charllm.devices.amd import AmdSource
        from pytest_charllm.devices.amd_calls import load_amdsmi

        return AmdSource(load_amdsmi(), uuids)
    if name == "cpu" and not argument:
        from pytest_charllm.devices.cpu import CpuSource

        return CpuSource(uuids)
    if name == "replay" and argument:
        from pytest_charllm.devices.replay import ReplaySource

        return ReplaySource(argument, uuids)
    if name == "simulated" and argument:
        from pytest_charllm.devices.simulated.source import Simulation

        return Simulation(argument, uuids).source()
    raise BadInput(f"telemetry source {kind!r} is unknown: use nvml, amd, cpu, replay:<path> or simulated:<profile>")
