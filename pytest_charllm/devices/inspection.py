"""A single look at devices, in a child process that can be given up: what they are, can answer, and say right now.

``python -m pytest_charllm.devices.inspection SOURCE [UUID...]`` prints one line of JSON; `inspect` runs it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

from pytest_charllm.devices.open import open_source
from pytest_charllm.devices.process import claim_stdout, die_with_parent, last_line, ours, run_bounded
from pytest_charllm.errors import BadInput, CharllmError, DeviceError
from pytest_charllm.records.telemetry import DeviceLine, RingLine, SampleLine, SnapshotLine

CHILD = ours("pytest_charllm.devices.inspection")
_APART_S = 0.2
"""Rates are between two reads."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`samples`, `snapshots` and `rings` by UUID, the last only of devices whose driver keeps its own record of power.

    `error`: why the source does not open, in one line; then all else is empty. `bad_input`: because there is no such.
    """

    source: str = ""
    library: str | None = None
    driver: str | None = None
    devices: tuple[DeviceLine, ...] = ()
    samples: dict[str, SampleLine] = {}
    snapshots: dict[str, SnapshotLine] = {}
    rings: dict[str, RingLine] = {}
    error: str | None = None
    bad_input: bool = False


def inspect(
    source: str, uuids: tuple[str, ...] = (), *, child: Sequence[str] = CHILD, timeout_s: float = 20.0
) -> Inspection:
    """Look at these devices of a source, at all it has if none.

    Raises `DeviceError` only where there is no answer: in time, or that can be read.
    """
    try:
        finished = run_bounded((*child, source, *uuids), timeout_s)
    except TimeoutError as error:
        raise DeviceError(f"{source} does not answer ({error}): look for a hung GPU in dmesg") from None
    if finished.code != 0:
        raise DeviceError(f"looking at {source} failed (exit {finished.code}): {last_line(finished.stderr)}")
    try:
        return msgspec.json.decode(finished.stdout, type=Inspection)
    except msgspec.DecodeError as error:
        raise DeviceError(f"looking at {source} gave nonsense ({error}): {finished.stdout[:80]!r}") from None


def look(kind: str, uuids: tuple[str, ...]) -> Inspection:
    """In this very process, which the driver may hold for ever."""
    try:
        source = open_source(kind, uuids)
        devices = source.devices()
        able = {
            device.uuid: {quantity for quantity, answer in device.capabilities.items() if answer == "ok"}
            for device in devices
        }
        samples = {uuid: source.read(uuid, wanted) for uuid, wanted in able.items()}
        snapshots = {uuid: source.snapshot(uuid, "start") for uuid in able}
        if any(able[uuid] - sample.values.keys() for uuid, sample in samples.items()):
            time.sleep(_APART_S)
            samples = {uuid: source.read(uuid, wanted) for uuid, wanted in able.items()}
        rings = {uuid: ring for uuid in able if (ring := source.power_ring(uuid)) is not None}
    except CharllmError as error:
        return Inspection(source=kind, error=str(error), bad_input=isinstance(error, BadInput))
    return Inspection(
        source=source.name,
        library=source.library,
        driver=source.driver,
        devices=devices,
        samples=samples,
        snapshots=snapshots,
        rings=rings,
    )


def main(argv: list[str]) -> int:
    out = claim_stdout()
    die_with_parent(signal.SIGKILL)
    os.write(out, msgspec.json.encode(look(argv[0], tuple(argv[1:]))) + b"\n")
    return 0


if __name__ == "__main__":
    # Not the ordinary end: a library's exit handlers may hang in the same driver.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
