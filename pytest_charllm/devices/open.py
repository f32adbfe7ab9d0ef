"""Which source answers to which name. Each is loaded only when it is asked for."""

from __future__ import annotations

from pytest_charllm.devices.source import TelemetrySource
from pytest_charllm.errors import BadInput


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
