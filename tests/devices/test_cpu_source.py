from __future__ import annotations

from pathlib import Path

import pytest

from pytest_charllm.devices.cpu import CpuSource
from pytest_charllm.errors import DeviceError

ALL = {"package_energy_j", "package_temp_c", "cpu_clock_mhz"}


def put(root: Path, path: str, text: object) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    return file


@pytest.fixture
def host(tmp_path) -> Path:
    """Two packages with RAPL (one of them with a core domain inside), a thermal zone and two clocks."""
    for package, energy in ((0, 5_000_000), (1, 7_500_000)):
        zone = f"sys/class/powercap/intel-rapl:{package}"
        put(tmp_path, f"{zone}/name", f"package-{package}")
        put(tmp_path, f"{zone}/energy_uj", energy)
        put(tmp_path, f"{zone}/max_energy_range_uj", 10_000_000)
    put(tmp_path, "sys/class/powercap/intel-rapl:0:0/name", "core")
    put(tmp_path, "sys/class/powercap/intel-rapl:0:0/energy_uj", 1_000_000)
    put(tmp_path, "sys/class/thermal/thermal_zone0/type", "acpitz")
    put(tmp_path, "sys/class/thermal/thermal_zone0/temp", 16800)
    put(tmp_path, "sys/class/thermal/thermal_zone1/type", "x86_pkg_temp")
    put(tmp_path, "sys/class/thermal/thermal_zone1/temp", 61500)
    put(tmp_path, "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", 2_000_000)
    put(tmp_path, "sys/devices/system/cpu/cpufreq/policy1/scaling_cur_freq", 3_000_000)
    return tmp_path


def opened(root: Path) -> CpuSource:
    return CpuSource(root=root, host="h")


def test_quantities_in_their_units(host):
    """Microjoules, millidegrees and kilohertz in sysfs; only packages count, or cores would be counted twice."""
    source = opened(host)
    assert source.devices()[0].uuid == "cpu-h"
    sample = source.read("cpu-h", ALL)
    assert sample.values == {"package_energy_j": 12.5, "package_temp_c": 61.5, "cpu_clock_mhz": 2500.0}


def test_a_counter_that_wraps_goes_on(host):
    """RAPL wraps every few minutes under load; as it is, the energy of that window would be negative."""
    source = opened(host)
    before = source.read("cpu-h", ALL).values["package_energy_j"]
    put(host, "sys/class/powercap/intel-rapl:0/energy_uj", 1_000_000)
    after = source.read("cpu-h", ALL).values["package_energy_j"]
    assert after - before == pytest.approx(6.0)


def test_nothing_readable_still_samples(tmp_path):
    """In a virtual machine none of these files exist: the trace then says so, and the launch goes on."""
    source = opened(tmp_path)
    line = source.devices()[0]
    assert set(line.capabilities) == ALL
    assert "ok" not in line.capabilities.values()
    assert "no RAPL package" in line.capabilities["package_energy_j"]
    assert source.read("cpu-h", ()).values == {}


def test_permission_is_the_reason(host, monkeypatch):
    """Since kernel 5.10 RAPL is readable by root only: the user must learn that, not 'not supported'."""
    readable = Path.read_text

    def guarded(self: Path, *args, **kwargs) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(self))
        return readable(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", guarded)
    reason = opened(host).devices()[0].capabilities["package_energy_j"]
    assert reason.startswith("permission denied: ")
    assert "intel-rapl:0/energy_uj" in reason


def test_a_later_failure_is_missing_with_its_reason(host):
    """A zone that goes away in mid-run must not repeat its last value."""
    source = opened(host)
    (host / "sys/class/thermal/thermal_zone1/temp").unlink()
    sample = source.read("cpu-h", ALL)
    assert sample.values["package_temp_c"] is None
    assert "No such file" in sample.missing["package_temp_c"]
    assert sample.values["cpu_clock_mhz"] == 2500.0


def test_another_host_is_refused(host):
    """A UUID of another node means the caller mixed up nodes."""
    with pytest.raises(DeviceError, match="knows only cpu-h, not cpu-other"):
        CpuSource(("cpu-other",), root=host, host="h")
