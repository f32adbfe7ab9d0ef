"""What was found here: the hardware variant, how many GPUs a node, how many nodes, and which devices exactly."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One physical GPU. Identity is `uuid`, never an index. Memory in bytes, power in watts.

    `island`: the same number for all that have NVLink between every two of them; None where no driver told.
    """

    uuid: str
    name: str
    pci: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    partition: str | None = None
    vbios: str | None = None
    island: int | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the scenarios run. `variant` is a catalogue name; on ``cpu`` a "GPU" is one gloo rank."""

    variant: str
    gpus_per_node: int
    nodes: int = 1
    devices: tuple[Device, ...] = ()
    cpu_model: str | None = None
    host: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    kernel: str | None = None
    container: str | None = None
    assumed: bool = False
    simulated: bool = False

    @property
    def world(self) -> int:
        return self.nodes * self.gpus_per_node

    def together(self, ranks: int) -> tuple[Device, ...]:
        """The devices of a launch of so many ranks, the same ones every time: the first that one island has as many of,
        else the first of the machine. Bridged cards come in pairs, and neighbours on the bus need not be one."""
        islands: dict[int, list[Device]] = {}
        for device in self.devices:
            if device.island is not None:
                islands.setdefault(device.island, []).append(device)
        within = (members for members in islands.values() if len(members) >= ranks)
        return tuple(next(within, self.devices)[:ranks])

    @property
    def shape(self) -> str:
        """``<nodes>x<gpus>``, the folder name of its baselines."""
        return f"{self.nodes}x{self.gpus_per_node}"

    @property
    def is_cpu(self) -> bool:
        return self.variant == "cpu"
