from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.devices.nvml import NvmlSource
from pytest_charllm.devices.wrap import RANGE, Unwrapped

S = 1_000_000_000
UINT, ULL = 1, 3
GEN3_X16 = 0.985e9 * 16


@given(st.lists(st.integers(0, RANGE - 1), min_size=1, max_size=40), st.integers(0, RANGE - 1))
def test_fault_09_a_wrap_is_put_together_where_only_one_is_possible(steps, start):
    """PCIe bytes in 32 bits run over every 0.3 s: a difference that went below zero was added to somebody's energy."""
    counter = Unwrapped(fastest=RANGE / 1.0)
    raw, told = start, [counter.total(start, 0)]
    for index, step in enumerate(steps, start=1):
        raw = (raw + step) % RANGE
        told.append(counter.total(raw, index * S // 2))
    assert told == [sum(steps[:index]) for index in range(len(steps) + 1)]


def test_fault_09_several_wraps_are_not_guessed_at():
    """Read too late it may have gone round any number of times; from there on it counts anew, visibly lower."""
    counter = Unwrapped(fastest=RANGE / 1.0)
    assert counter.total(10, 0) == 0
    assert counter.total(30, S // 2) == 20
    assert "may have wrapped more than once" in counter.total(40, 3 * S)
    assert counter.total(50, 3 * S + 1) == 10


@pytest.mark.parametrize(
    ("generation", "kind", "capability"),
    [
        (5, UINT, "field 197: a 32-bit counter that this link can wrap in 68 ms"),
        (3, UINT, "ok"),
        (5, ULL, "ok"),
    ],
)
def test_fault_09_a_counter_that_cannot_be_unwrapped_at_our_rate_is_off(nvml, generation, kind, capability):
    """64 GB/s go round 32 bits in 67 ms; even 20 Hz cannot tell how often. The value's type says how wide it is."""
    nvml.fields |= {(197, 0): (kind, 4096), (198, 0): (kind, 8192)}
    nvml.answers |= {"nvmlDeviceGetMaxPcieLinkGeneration": generation, "nvmlDeviceGetMaxPcieLinkWidth": 16}
    now = [0]
    source = NvmlSource(nvml, (nvml.UUID,), clock=lambda: now[0])
    assert source.devices()[0].capabilities["pcie_tx_kib"] == capability
    if capability != "ok":
        return
    first = source.read(nvml.UUID, {"pcie_tx_kib"}).values["pcie_tx_kib"]
    now[0] += S // 10
    nvml.fields[(197, 0)] = (kind, 4096 + 1024 if kind == ULL else 1024)
    moved = source.read(nvml.UUID, {"pcie_tx_kib"}).values["pcie_tx_kib"] - first
    assert moved == (1.0 if kind == ULL else (RANGE - 3072) / 1024)
