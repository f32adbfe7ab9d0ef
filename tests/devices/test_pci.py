from __future__ import annotations

from pathlib import Path

import pytest

from pytest_charllm.devices.pci import PciGpu, gpus, sysfs_address


def plug(root: Path, address: str, vendor: str, class_: str) -> None:
    device = root / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(class_ + "\n")


@pytest.mark.parametrize(
    ("vendor", "class_", "is_gpu"),
    [
        ("0x10de", "0x030200", True),  # H200: 3D controller
        ("0x10de", "0x030000", True),  # GeForce: VGA
        ("0x10de", "0x068000", False),  # NVSwitch: bridge
        ("0x10de", "0x040300", False),  # audio function of a graphics card
        ("0x1002", "0x038000", True),  # MI250: display controller
        ("0x1002", "0x120000", True),  # MI300X: processing accelerator
        ("0x1002", "0x030000", False),  # graphics inside a Ryzen
        ("0x1a03", "0x030000", False),  # BMC
        ("0x8086", "0x030000", False),
    ],
)
def test_what_counts_as_a_gpu(tmp_path, vendor, class_, is_gpu):
    """A BMC or the graphics of a CPU must not turn a CPU machine into 'GPU present with a dead driver'."""
    plug(tmp_path, "0000:17:00.0", vendor, class_)
    assert bool(gpus(tmp_path)) == is_gpu


def test_address_and_vendor_are_told(tmp_path):
    """The error message of a dead driver names what is plugged in."""
    plug(tmp_path, "0000:65:00.0", "0x1002", "0x038000")
    plug(tmp_path, "0000:17:00.0", "0x10de", "0x030200")
    assert gpus(tmp_path) == (PciGpu("0000:17:00.0", "NVIDIA"), PciGpu("0000:65:00.0", "AMD"))


def test_no_sysfs_and_broken_entries_are_no_gpus(tmp_path):
    """Sandboxes have no /sys/bus/pci, and a device may be unplugged between listing and reading."""
    assert gpus(tmp_path / "absent") == ()
    (tmp_path / "0000:01:00.0").mkdir()
    assert gpus(tmp_path) == ()


def test_addresses_agree_with_sysfs():
    """NVML pads the domain to eight digits and writes capitals: joined with sysfs by text, nothing would match."""
    assert sysfs_address("00000000:C1:00.0") == "0000:c1:00.0"
    assert sysfs_address("00010000:C1:00.0") == "10000:c1:00.0"
