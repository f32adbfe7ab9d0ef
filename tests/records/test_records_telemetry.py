from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records.telemetry import CUMULATIVE, QUANTITIES, DeviceLine, Meta, Part, Trace, decode_lines

META = Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=0, wall_s=0.0)
GPUS = tuple(DeviceLine(uuid=f"GPU-{i}", name="NVIDIA H200", pci=f"0000:{i}7:00.0") for i in range(4))
PACKAGE = DeviceLine(
    uuid="die-0", name="AMD Instinct MI250", pci="0000:c1:00.0",
    parts=(Part(uuid="die-0", pci="0000:c1:00.0"), Part(uuid="die-1", pci="0000:c5:00.0")),
)  # fmt: skip


def trace(*devices: DeviceLine) -> Trace:
    return Trace(meta=META, devices={device.uuid: device for device in devices}, samples={})


@given(st.permutations(GPUS))
def test_fault_13_ranks_find_their_gpu_by_name_in_any_order(order):
    """CUDA_VISIBLE_DEVICES permutes, NVML sorts by PCI address: by position, one card's heat goes to another."""
    recorded = trace(*order)
    for gpu in GPUS:
        assert recorded.device_of(gpu.uuid) == gpu
        assert recorded.device_of(None, gpu.pci) == gpu


@pytest.mark.parametrize("spelling", ["0000:27:00.0", "00000000:27:00.0", "0000:27:00.0".upper()])
def test_fault_13_an_address_is_one_in_every_spelling(spelling):
    """torch and NVML write the PCI domain with eight digits, sysfs with four."""
    assert trace(*GPUS).device_of("unknown to us", spelling) == GPUS[2]


def test_fault_13_a_rank_on_a_gpu_that_was_not_sampled_has_none():
    """Falling back to the first card would be a number from somewhere else."""
    assert trace(*GPUS).device_of("GPU-9", "0000:97:00.0") is None
    assert trace(*GPUS).device_of(None) is None


def test_fault_11_both_dies_are_on_the_same_package():
    """Whatever is summed over the devices of the ranks then counts the package once."""
    recorded = trace(PACKAGE)
    assert recorded.device_of("die-0") is recorded.device_of("die-1") is recorded.device_of(None, "0000:C5:00.0")


def test_files_of_earlier_versions_stay_readable():
    """A recording outlives the code that wrote it: what was added since has a default."""
    old = (
        b'{"line":"meta","schema":1,"source":"nvml","host":"h","period_s":0.1,"pid":1,"mono_ns":1,"wall_s":1.0}\n'
        b'{"line":"device","uuid":"GPU-0","name":"NVIDIA H200"}\n'
        b'{"line":"sample","uuid":"GPU-0","mono_ns":2,"latency_ns":1,"values":{"energy_j":1.5}}\n'
        b'{"line":"event","kind":"anchor","mono_ns":3,"text":"","uuid":null,"wall_s":1.0}\n'
        b'{"line":"end","mono_ns":4,"samples":1,"cpu_s":0.1,"reason":"stdin closed"}\n'
    )
    meta, lines, torn = decode_lines(old, "old.jsonl")
    assert (meta.slow_period_s, len(lines), torn) == (None, 4, 0)


def test_every_counter_is_a_quantity():
    """A typing mistake would make a counter one that is allowed to fall."""
    assert set(QUANTITIES) > CUMULATIVE
    assert {"energy_j", "throttle_hw_brake_ns", "link_tx_kib"} <= CUMULATIVE
    assert "power_instant_w" not in CUMULATIVE


def test_a_device_line_is_written_as_it_is_read():
    """The parts of a package travel with it."""
    assert msgspec.json.decode(msgspec.json.encode(PACKAGE), type=DeviceLine) == PACKAGE
