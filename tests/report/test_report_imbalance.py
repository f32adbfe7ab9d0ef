"""Temperatures across a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import Launch, Pass, Status, tier
from pytest_charllm.report.case import Case
from pytest_charllm.report.imbalance import imbalance, node_lines
from pytest_charllm.scenario.key import parse_key

TEMPERATURES = st.lists(st.integers(30, 95), min_size=2, max_size=9)


@given(TEMPERATURES)
def test_a_node_that_is_turned_around_has_its_halves_turned_around(temperatures: list[int]) -> None:
    """Halves of unequal size would call an even node uneven."""
    here = imbalance({str(i): float(each) for i, each in enumerate(temperatures)})
    turned = imbalance({str(i): float(each) for i, each in enumerate(reversed(temperatures))})
    assert here is not None
    assert turned is not None
    assert here.halves_c == pytest.approx(-turned.halves_c)
    assert here.spread_c == turned.spread_c == max(temperatures) - min(temperatures)


def test_one_card_is_no_node() -> None:
    """A spread of 0 degC would read as a perfectly even node."""
    assert imbalance({"0": 60.0}) is None


def case(key: str, column: tuple[float | None, ...]) -> Case:
    launch = Launch(
        id="l", scenario=parse_key(key), pass_=Pass.TIMED, window=tier("smoke", False).window, status=Status.COMPLETED
    )
    measured: Any = SimpleNamespace(device_uuids=("GPU-b", "GPU-a"), per_rank={"core_temp_end": column})
    return Case(key=key, verdict="PASS", because="", measurements=[measured], launches=[launch])


def test_places_are_those_of_the_bus_not_of_the_ranks() -> None:
    """Which of two cards is rank 0 says nothing of where in the chassis it sits."""
    devices = (Device(uuid="GPU-a", name="x", pci="00:17"), Device(uuid="GPU-b", name="x", pci="00:DA"))
    machine = Machine(variant="h200-sxm", gpus_per_node=2, devices=devices)
    soaked = "llama3-1b.dp2.mb1.soak15"
    assert node_lines([case(soaked, (72.0, 60.0)), case("llama3-1b.dp2.mb1", (72.0, 60.0))], machine) == [
        f"{soaked}: 60 to 72 degC across the node (+20 %), 00:DA the hottest; second half of the PCI bus +12.0 degC"
    ]
    assert node_lines([case(soaked, (72.0, None))], machine) == []
