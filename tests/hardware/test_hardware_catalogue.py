"""The catalogue, names of real devices, and assumed machines."""

from __future__ import annotations

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware import Machine
from pytest_charllm.hardware.catalogue import CATALOGUE, default_variant, match_name, parse_assume, resolve


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("AMD Instinct MI250X", "mi250x"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "mi250"),
        ("AMD Instinct MI300X VF", "mi300x"),
        (" NVIDIA H200\n", "h200-sxm"),
    ],
)
def test_device_names_tell_the_exact_variant(name: str, variant: str) -> None:
    """An NVL or PCIe card that is taken for the SXM part is judged against a 700 W card's baseline."""
    hardware = match_name(name)
    assert hardware is not None
    assert hardware.variant == variant


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB200",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100 80GB PCIe",
        "AMD Instinct MI250X / MI250",
        "AMD Instinct MI210",
        "",
    ],
)
def test_other_devices_match_nothing(name: str) -> None:
    """A search for "H200" in the name makes a Grace Hopper, a MIG slice or a smaller card share baselines."""
    assert match_name(name) is None


def test_a_family_means_all_its_variants() -> None:
    """`--gpu=h100` on an NVL machine must find it; `mi250` is a variant and a family, and the family is meant."""
    assert [hardware.variant for hardware in resolve("h100")] == ["h100-sxm", "h100-nvl", "h100-pcie"]
    assert [hardware.variant for hardware in resolve("mi250")] == ["mi250", "mi250x"]
    assert [hardware.variant for hardware in resolve("h200-nvl")] == ["h200-nvl"]
    assert [hardware.variant for hardware in resolve("cpu")] == ["cpu"]


def test_every_variant_and_family_resolves() -> None:
    """A family spelt like no entry, or an entry that hides behind a family, could never be asked for."""
    for variant, hardware in CATALOGUE.items():
        assert hardware.variant == variant
        assert hardware in resolve(variant)
        assert hardware in resolve(hardware.family)
        assert default_variant(variant) is hardware


def test_a_family_defaults_to_its_sxm_part() -> None:
    """Sorting variants by name would make an assumed h100 the NVL card."""
    assert [default_variant(family).variant for family in ("a100", "h100", "h200", "b200", "mi250", "mi300")] == [
        "a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi250", "mi300x",
    ]  # fmt: skip


def test_unknown_hardware_is_one_line_with_close_matches() -> None:
    """A typo must say what was meant, on one line, not list a traceback."""
    with pytest.raises(BadInput, match=r"hardware 'h20O' is not known; did you mean .*h200.*known: cpu, a100"):
        resolve("h20O")
    with pytest.raises(BadInput) as caught:
        resolve("voodoo2")
    assert "did you mean" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_units() -> None:
    """Mixing MiB, GB and per-package numbers is off by 5 % to 100 %; the MI250 counts GCDs."""
    h200, mi250 = CATALOGUE["h200-sxm"], CATALOGUE["mi250"]
    assert h200.memory_bytes == 150_754_820_096
    assert h200.peak_bf16_flops == 989e12
    assert h200.memory_bytes_per_s == 4.8e12
    assert mi250.gpus_per_package == 2
    assert mi250.memory_bytes == 64 * 2**30
    cpu = CATALOGUE["cpu"]
    assert (cpu.memory_bytes, cpu.peak_bf16_flops, cpu.memory_bytes_per_s, cpu.tdp_w) == (None, None, None, None)
    assert all(None not in (h.memory_bytes, h.peak_bf16_flops, h.tdp_w) for h in CATALOGUE.values() if h is not cpu)


def test_catalogue_is_read_only() -> None:
    """A consumer that edits the shared table would change the hardware for everyone after it."""
    with pytest.raises(TypeError):
        CATALOGUE["h200-sxm"] = CATALOGUE["cpu"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "variant", "shape"),
    [
        ("h200:1x8", "h200-sxm", "1x8"),
        ("h200", "h200-sxm", "1x8"),
        ("h100-nvl:2x4", "h100-nvl", "2x4"),
        ("h200:4x8", "h200-sxm", "4x8"),
        ("mi250:4x8", "mi250", "4x8"),
        ("cpu", "cpu", "1x2"),
        ("cpu:1x4", "cpu", "1x4"),
    ],
)
def test_assumed_machines(text: str, variant: str, shape: str) -> None:
    """Nodes and GPUs swapped, or an assumed machine that does not say so, would plan or record the wrong thing."""
    machine = parse_assume(text)
    assert (machine.variant, machine.shape, machine.assumed) == (variant, shape, True)


MALFORMED = ("h200:", "h200:8", "h200:0x8", "h200:1x0", "h200:1x-8", "h200:1x8x2", "h200:٣x8", ":1x8")


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_assumptions_are_refused(text: str) -> None:
    """A shape that cannot be read must not become one GPU, nor zero."""
    with pytest.raises(BadInput) as caught:
        parse_assume(text)
    assert "\n" not in str(caught.value)


def test_half_a_package_is_refused() -> None:
    """An odd number of GPUs a node on MI250 means that packages were counted, not GCDs."""
    with pytest.raises(BadInput, match="7 GPUs a node, but a mi250 package has 2"):
        parse_assume("mi250:1x7")


def test_machine_words() -> None:
    """`shape` names the baseline folder: nodes first, then GPUs a node."""
    machine = Machine(variant="h200-sxm", gpus_per_node=8, nodes=4)
    assert (machine.world, machine.shape, machine.is_cpu) == (32, "4x8", False)
