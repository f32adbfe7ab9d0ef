"""What a telemetry source is: the one interface between the sampler and a vendor's library."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, EventLine, RingLine, SampleLine, SnapshotLine


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
        """The physical devices, probed once at opening, each with what it can answer and why not the rest."""
        ...

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        """One pass over one device for the wanted quantities; raises `DeviceLostError`."""
        ...

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        """Health of one device ("start" or "end"). Never in a loop: it may take tens of milliseconds."""
        ...

    def power_ring(self, uuid: str) -> RingLine | None:
        """What the driver has kept of this device's power since the last call; None where it keeps nothing."""
        ...

    def processes(self, uuid: str) -> tuple[int, ...]:
        """Process ids that compute on one device, as far as the driver tells; empty where it does not."""
        ...

    def wait_events(self, timeout_s: float) -> tuple[EventLine, ...] | None:
        """Errors that the driver reports of any device, as they come; None where it never does: do not ask again."""
        ...


class WithoutExtras:
    """What a source answers whose library keeps no power, names no processes and reports no errors by itself."""

    def power_ring(self, uuid: str) -> RingLine | None:
        return None

    def processes(self, uuid: str) -> tuple[int, ...]:
        return ()

    def wait_events(self, timeout_s: float) -> tuple[EventLine, ...] | None:
        return None
