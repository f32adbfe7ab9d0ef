"""Simulated boards with their vendor's library in front, to be read by the source that reads the real one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from pytest_charllm.devices.simulated.board import FAULTS, PROFILES, Board, Profile, SimulatedGpu, Truth
from pytest_charllm.devices.source import TelemetrySource
from pytest_charllm.errors import BadInput

DEFAULT_UUID = "GPU-simulated-0"


class Simulation:
    """Boards of one profile and the library in front of them. `uuids` are GPUs as programs see them.

    Raises `BadInput` for an unknown profile or fault, ``<profile>`` or ``<profile>+<fault>``.
    """

    def __init__(
        self,
        profile: str | Profile,
        uuids: tuple[str, ...] = (),
        *,
        seed: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        name, _, fault = profile.partition("+") if isinstance(profile, str) else (profile.title, "", "")
        if isinstance(profile, str) and name not in PROFILES:
            raise BadInput(f"simulated profile {name!r} is unknown: use {', '.join(PROFILES)}")
        if fault and fault not in FAULTS:
            raise BadInput(f"simulated fault {fault!r} is unknown: use {', '.join(FAULTS)}")
        self.name = f"simulated:{profile if isinstance(profile, str) else name}"
        self.profile = PROFILES[name] if isinstance(profile, str) else profile
        self.gpu = SimulatedGpu(self.profile)
        self.uuids = uuids or (DEFAULT_UUID,)
        self.clock, self.opened_ns = clock, clock()
        self._seed, self._fault, self._sleep = seed, fault, sleep
        self.module = self._module()

    def source(self) -> TelemetrySource:
        """The vendor's real source over the simulated library."""
        if self.profile.vendor == "nvidia":
            from pytest_charllm.devices.nvml import NvmlSource

            return NvmlSource(self.module, self.uuids, name=self.name, clock=self.clock)
        from pytest_charllm.devices.amd import AmdSource

        return AmdSource(self.module, self.uuids, name=self.name, clock=self.clock, sleep=self._sleep)

    def truth(self, begin_ns: int, end_ns: int) -> Truth:
        """The exact answers for a window of the source's clock, for every board alike."""
        begin, end = (begin_ns - self.opened_ns) / 1e9, (end_ns - self.opened_ns) / 1e9
        energy_j = self.gpu.energy_j(end) - self.gpu.energy_j(begin)
        capped_s = self.gpu.power_cap_s(end) - self.gpu.power_cap_s(begin)
        return Truth(energy_j, energy_j / (end - begin), capped_s)

    def _module(self) -> Any:
        """The vendor's library."""
        if self.profile.vendor == "nvidia":
            from pytest_charllm.devices.simulated.nvml import SimulatedNvml

            return SimulatedNvml({uuid: self._board(uuid, first=not i) for i, uuid in enumerate(self.uuids)})
        from pytest_charllm.devices.simulated.amdsmi import Die, SimulatedAmdsmi

        dies: list[Die] = []
        boards: dict[int, Board] = {}
        for position, uuid in enumerate(self.uuids):
            slot = _slot(uuid, position)
            number, part = divmod(slot, self.profile.gpus_per_package)
            board = boards.setdefault(number, self._board(f"package-{number}", first=not boards))
            dies.append(Die(uuid=uuid, slot=slot, package=number, part=part, board=board))
        return SimulatedAmdsmi(self.profile, dies)

    def _board(self, name: str, *, first: bool) -> Board:
        return Board(
            self.profile, name, seed=self._seed, clock=self.clock, opened_ns=self.opened_ns,
            fault=self._fault if first else "",
        )  # fmt: skip


def _slot(uuid: str, position: int) -> int:
    """Where a GPU sits: the number at the end of its made-up UUID, else its place among those named."""
    number = re.search(r"(\d+)$", uuid)
    return int(number[1]) if number else position
