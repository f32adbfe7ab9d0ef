"""Which devices a launch of fewer ranks than the machine has gets."""

from __future__ import annotations

import pytest

from pytest_charllm.hardware import Device, Machine


@pytest.mark.parametrize(
    ("islands", "ranks", "expected"),
    [
        ((0, 0, 0, 0), 2, "01"),
        ((0, 1, 0, 1), 2, "02"),
        ((0, 1, 1, 2), 2, "12"),
        ((0, 1, 0, 1), 1, "0"),
        ((0, 1, 0, 1), 4, "0123"),
        ((0, 1, 2, 3), 2, "01"),
        ((None, None, None, None), 2, "01"),
    ],
)
def test_ranks_stay_on_one_island(islands: tuple[int | None, ...], ranks: int, expected: str) -> None:
    """The first two on the bus may be of two bridges: their traffic would cross the host, and pass for NVLink's."""
    devices = tuple(Device(uuid=str(i), name="NVIDIA H100 NVL", island=island) for i, island in enumerate(islands))
    machine = Machine(variant="h100-nvl", gpus_per_node=4, devices=devices)
    assert "".join(device.uuid for device in machine.together(ranks)) == expected


def test_a_cpu_has_no_devices_to_give() -> None:
    """Its ranks are processes, and nothing is masked for them."""
    assert Machine(variant="cpu", gpus_per_node=2).together(2) == ()
