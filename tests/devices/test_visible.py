from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.devices.visible import hides_all, visible, visible_amd
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware import Device

A, B, C = (
    Device(uuid=uuid, name="NVIDIA H200") for uuid in ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")
)
MIXED = (A, Device(uuid="GPU-cccc4444-0000", name="NVIDIA L4"))


def seen(value: str | None, devices=(A, B, C), **environ: str) -> tuple[Device, ...]:
    return visible(devices, environ if value is None else {"CUDA_VISIBLE_DEVICES": value, **environ})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (A, B, C)),
        ("0", (A,)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        ("GPU-bbbb3333-0000,0", (C, A)),
        ("GPU-bbb", (C,)),
        ("GPU-aaaa2", (B,)),
        ("1,-1,2", (B,)),
    ],
)
def test_fault_13_selection_as_cuda_reads_it(value, expected):
    """Measuring other GPUs than the ranks use pairs one card's speed with another card's heat."""
    assert seen(value) == expected


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("3", "names GPU 3"),
        ("x", "'x'"),
        ("0,,1", "''"),
        ("GPU-aaaa", "several GPUs"),
        ("GPU-dead", "'GPU-dead' names no GPU"),
        ("0,GPU-aaaa1", "twice"),
        ("MIG-1234", "MIG instance MIG-1234"),
        ("1.0", "'1.0'"),
        ("²", "'²'"),
    ],
)
def test_fault_13_what_cannot_be_understood_is_named(value, named):
    """CUDA silently stops at the first entry it does not understand: a run on fewer GPUs than meant."""
    with pytest.raises(DeviceError, match=named):
        seen(value)


@pytest.mark.parametrize(("value", "hidden"), [(None, False), ("", True), ("-1", True), ("0", False), ("-1,0", True)])
def test_fault_13_hiding_all(value, hidden):
    """Empty is not unset: it is how one asks for a CPU run on a GPU node."""
    assert hides_all({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == hidden


def test_fault_14_numbers_among_different_gpus_need_an_order():
    """CUDA numbers by speed unless told otherwise, NVML by PCI address: on a mixed node number 0 differs."""
    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        seen("0", MIXED)
    assert seen("0", MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == (A,)
    assert seen("GPU-cccc", MIXED) == (MIXED[1],)


@given(st.permutations([A, B, C]))
def test_naming_all_by_uuid_keeps_the_order_given(order):
    """Rank i runs on the i-th GPU named: the order carries meaning."""
    assert seen(",".join(device.uuid for device in order)) == tuple(order)


AMD = tuple(Device(uuid=f"b0ff74a1-0000-1000-80{i}4-c3f0a1b2d3e{i}", name="AMD Instinct MI250") for i in range(4))


def seen_amd(*, hip_order: bool = True, **environ: str) -> tuple[int, ...]:
    chosen = visible_amd(
        AMD, {f"{name}_VISIBLE_DEVICES": value for name, value in environ.items()}, hip_order=hip_order
    )
    return tuple(AMD.index(device) for device in chosen)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR": "2,3"}, (2, 3)),
        ({"ROCR": "2,3", "HIP": "1"}, (3,)),
        ({"ROCR": "3,1,0", "HIP": "2,0"}, (0, 3)),
        ({"CUDA": "1"}, (1,)),
        ({"CUDA": "1", "HIP": "2"}, (2,)),
        ({"ROCR": "3,2", "CUDA": "0"}, (3,)),
        ({"HIP": "1,-1,2"}, (1,)),
        ({"HIP": ""}, ()),
        ({"ROCR": "GPU-8024c3f0a1b2d3e2"}, (2,)),
        ({"ROCR": AMD[1].uuid}, (1,)),
    ],
)
def test_fault_15_masks_nest_as_rocm_nests_them(environ, expected):
    """HIP counts among what ROCr has left: read the other way round, one GPU's heat goes with another's speed."""
    assert seen_amd(**environ) == expected


@pytest.mark.parametrize(
    "environ", [{"ROCR": "9"}, {"ROCR": "1", "HIP": "1"}, {"HIP": "0,0"}, {"HIP": "x"}, {"CUDA": "1,"}]
)
def test_fault_15_what_names_no_gpu_is_an_error(environ):
    """ROCm would silently run on fewer GPUs; the message names the mask and what it could have named."""
    with pytest.raises(DeviceError, match=r"_VISIBLE_DEVICES=.*names no GPU, or one twice; left are: "):
        seen_amd(**environ)


def test_fault_15_numbers_need_an_order():
    """amd-smi lists GPUs in another order than HIP: without being told HIP's, a number chooses blindly."""
    with pytest.raises(DeviceError, match=r"ROCm 6\.3 or newer"):
        seen_amd(hip_order=False, HIP="1")
    assert seen_amd(hip_order=False, ROCR=AMD[1].uuid) == (1,)
    assert seen_amd(hip_order=False) == (0, 1, 2, 3)
