"""Temperatures across a node after a soak: which card is the hottest, and whether one half of them is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_charllm.hardware import Machine
from pytest_charllm.records import Measurement
from pytest_charllm.report.case import Case


class Imbalance(NamedTuple):
    """`share`: of the spread over the coolest in degC, as the CharLLM study tells it, up to 27 % there.
    `halves_c`: mean of the second half of the places less that of the first."""

    coolest: str
    hottest: str
    spread_c: float
    share: float
    halves_c: float


def imbalance(core_c: Mapping[str, float]) -> Imbalance | None:
    """Of cards by their place, in the order of the node; None of fewer than two. An odd one out in the middle is in
    both halves."""
    if len(core_c) < 2:
        return None
    coolest, hottest = min(core_c, key=core_c.__getitem__), max(core_c, key=core_c.__getitem__)
    temperatures, half = list(core_c.values()), (len(core_c) + 1) // 2
    spread_c = core_c[hottest] - core_c[coolest]
    halves_c = statistics.fmean(temperatures[-half:]) - statistics.fmean(temperatures[:half])
    return Imbalance(coolest, hottest, spread_c, spread_c / core_c[coolest], halves_c)


def node_lines(cases: Iterable[Case], machine: Machine) -> list[str]:
    """A line for each soak of several cards."""
    lines = []
    for case in cases:
        if case.launches and case.launches[0].scenario.options.soak and case.measurements:
            core_c = _by_place(case.measurements[-1], machine)
            if (found := imbalance(core_c)) is not None:
                lines.append(_told(case.key, core_c, found))
    return lines


def _by_place(measurement: Measurement, machine: Machine) -> dict[str, float]:
    """Core temperature at the end, by PCI address in its order; by UUID where no address is known."""
    places = {device.uuid: device.pci or device.uuid for device in machine.devices}
    column = measurement.per_rank.get("core_temp_end", ())
    known = {
        places.get(uuid, uuid): core_c
        for uuid, core_c in zip(measurement.device_uuids, column, strict=False)
        if core_c is not None
    }
    return dict(sorted(known.items()))


def _told(key: str, core_c: Mapping[str, float], found: Imbalance) -> str:
    return (
        f"{key}: {core_c[found.coolest]:.0f} to {core_c[found.hottest]:.0f} degC across the node "
        f"(+{100 * found.share:.0f} %), {found.hottest} the hottest; "
        f"second half of the PCI bus {found.halves_c:+.1f} degC"
    )
