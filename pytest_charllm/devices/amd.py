"""AMD GPUs through amdsmi, a physical package a device. Reads only, and none of the calls that sleep inside."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from pytest_charllm.devices.amd_calls import LOST, AmdError, optional, start
from pytest_charllm.devices.amd_identity import Die, dies, packages
from pytest_charllm.devices.amd_package import Package
from pytest_charllm.devices.source import DeviceLostError, WithoutExtras
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, SampleLine, SnapshotLine

BUSY_S = 1.0
"""amdsmi is not safe in several threads, so passes take turns; a pass that waits longer than this is missing."""
_SANITY_S = 0.6
_SANITY_RATIO = (0.5, 2.0)
"""Energy counted over energy from power, within which the counter is believed."""


class AmdSource(WithoutExtras):
    """`smi` is the module `amdsmi`. Raises `DeviceError` where it does not start, is of another generation than its
    library, or lacks a named device. Opening takes half a second: the energy counter is held against power.
    """

    def __init__(
        self,
        smi: Any,
        uuids: tuple[str, ...],
        *,
        name: str = "amd",
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._smi, self._clock = smi, clock
        self._turn = threading.Lock()
        try:
            self.library: str | None = start(smi)
            boards = _named(packages(dies(smi)), uuids)
            self._packages = {parts[0].uuid: Package(smi, parts) for parts in boards}
        except AmdError as refused:
            raise DeviceError(refused.explain("amdsmi does not start")) from None
        driver = optional(smi, "amdsmi_get_gpu_driver_info", boards[0][0].handle) if boards else None
        self.driver: str | None = str(driver["driver_version"]) if driver else None
        self._check_energy(sleep)

    def devices(self) -> tuple[DeviceLine, ...]:
        return tuple(package.line for package in self._packages.values())

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        package = self._packages[uuid]
        values: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        at_ns: dict[str, int] = {}
        begin_ns = self._clock()
        if self._turn.acquire(timeout=BUSY_S):
            try:
                answers = package.read(wanted, self._clock)
            finally:
                self._turn.release()
            for quantity, answer in answers.items():
                if isinstance(answer, AmdError) and answer.code in LOST:
                    raise DeviceLostError(answer.explain(f"{uuid} ({package.line.name})"))
                if isinstance(answer, AmdError | str):
                    values[quantity], missing[quantity] = None, str(answer)
                else:
                    values[quantity] = answer
            if values.get("energy_j") is not None and package.energy_at_ns is not None:
                at_ns["energy_j"] = package.energy_at_ns
        else:
            values = dict.fromkeys(q for q in wanted if package.line.capabilities.get(q) == "ok")
            missing = dict.fromkeys(values, f"amdsmi is held by another GPU's call for over {BUSY_S:g} s")
        end_ns = self._clock()
        package.plausible.filter(values, missing)
        return SampleLine(
            uuid=uuid, mono_ns=(begin_ns + end_ns) // 2, latency_ns=end_ns - begin_ns, values=values, missing=missing,
            at_ns=at_ns,
        )  # fmt: skip

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        with self._turn:
            return self._packages[uuid].snapshot(when, self._clock())

    def _check_energy(self, sleep: Callable[[float], None]) -> None:
        """Counters that stand still, or count something else, were seen: each has to agree with power at first."""
        ready = [package for package in self._packages.values() if package.line.capabilities["energy_j"] == "ok"]
        before = [self._energy_and_power(package) for package in ready]
        if ready:
            sleep(_SANITY_S)
        for package, (joules, watts, then_ns) in zip(ready, before, strict=True):
            now_j, now_w, now_ns = self._energy_and_power(package)
            if None in (joules, watts, now_j, now_w) or now_ns <= then_ns:
                continue
            expected_j = statistics.fmean((watts, now_w)) * (now_ns - then_ns) / 1e9
            ratio = (now_j - joules) / expected_j if expected_j > 0 else 0.0
            if not _SANITY_RATIO[0] <= ratio <= _SANITY_RATIO[1]:
                package.distrust("energy_j", f"counted {ratio:.2f} times what power says: not believed")

    def _energy_and_power(self, package: Package) -> tuple[Any, Any, int]:
        answers = package.read(("energy_j", "power_instant_w", "power_average_w"), self._clock)
        watts = answers.get("power_instant_w", answers.get("power_average_w"))
        joules = answers.get("energy_j")
        return (
            None if isinstance(joules, AmdError | str) else joules,
            None if isinstance(watts, AmdError | str) else watts,
            package.energy_at_ns or self._clock(),
        )


def _named(found: list[tuple[Die, ...]], uuids: tuple[str, ...]) -> list[tuple[Die, ...]]:
    """The packages that hold the named GPUs, each once; all of them where none is named."""
    if not uuids:
        return found
    known = {die.uuid: parts for parts in found for die in parts}
    absent = [uuid for uuid in uuids if uuid not in known]
    if absent:
        raise DeviceError(f"amdsmi lists no {', '.join(absent)}; here are: {', '.join(known) or 'none'}")
    return list(dict.fromkeys(known[uuid] for uuid in uuids))
