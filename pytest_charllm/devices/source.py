"""What a telemetry source is: the one interface between the sampler and a vendor's library."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pytest_charllm.errors import BadInput, DeviceError
from pytest_charllm.records.telemetry import DeviceLine, SampleLine


class DeviceLostError(DeviceError):
    """The device left for good (off the bus, or needing a reset): no later read can succeed."""


class TelemetrySource(Protocol):
    """Reads one kind of device. It only ever reads: no source has a way to change a setting.

    A source delivers quantities of `records.telemetry.QUANTITIES`, in their units and filtered: a value that the
    device refused, or that cannot be true, is None with its reason. Reads of different devices may run in different
    threads at once; reads of one device do not. A read may hang in the driver: its caller watches the clock.
    """

    name: str
    """As asked of `open_source`; goes on record."""
    library: str | None
    driver: str | None

    def devices(self) -> tuple[DeviceLine, ...]:
        """The devices, probed once at opening, each with what it can answer and why not the rest."""
        ...

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        """One pass over one device for the wanted quantities; raises `DeviceLostError`."""
        ...


def open_source(kind: str, uuids: tuple[str, ...]) -> TelemetrySource:
    """Open "nvml", "cpu", "replay:<path>" or "simulated:<profile>" for these devices; none named means all it has.

    Opens vendor libraries, so it belongs in a process that can be given up. Raises `DeviceError` where the library
    or a named device is absent, `BadInput` for an unknown kind, and `BadRecord` for a broken recording.
    """
    name, _, argument = kind.partition(":")
    if name == "nvml" and not argument:
        from pytest_charllm.devices.nvml import NvmlSource, load_nvml

        return NvmlSource(load_nvml(), uuids)
    if name == "cpu" and not argument:
        from pytest_charllm.devices.cpu import CpuSource

        return CpuSource(uuids)
    if name == "replay" and argument:
        from pytest_charllm.devices.replay import ReplaySource

        return ReplaySource(argument, uuids)
    if name == "simulated" and argument:
        from pytest_charllm.devices.simulated import SimulatedSource

        return SimulatedSource(argument, uuids)
    raise BadInput(f"telemetry source {kind!r} is unknown: use nvml, cpu, replay:<path> or simulated:<profile>")
