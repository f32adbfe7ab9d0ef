"""The host's processors as one device, from sysfs: package energy (RAPL), temperature, clock. Often none is there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_charllm.devices.host import cpu_model, kernel
from pytest_charllm.devices.plausible import Plausible
from pytest_charllm.devices.source import WithoutExtras
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, SampleLine, SnapshotLine

_PACKAGE_ZONES = frozenset({"x86_pkg_temp", "cpu-thermal", "cpu_thermal"})
Reader = Callable[[], float]


class CpuSource(WithoutExtras):
    """One pseudo device, ``cpu-<host>``. Files lie below `root`, so that tests can lay them out.

    Raises `DeviceError` when asked for any other device.
    """

    name = "cpu"
    library: str | None = None

    def __init__(self, uuids: tuple[str, ...] = (), *, root: Path = Path("/"), host: str | None = None) -> None:
        self.driver: str | None = kernel()
        uuid = f"cpu-{host or socket.gethostname()}"
        if set(uuids) - {uuid}:
            raise DeviceError(f"the cpu source knows only {uuid}, not {', '.join(sorted(set(uuids) - {uuid}))}")
        self._readers: dict[str, Reader] = {}
        self._plausible = Plausible()
        capabilities: dict[str, str] = {}
        for quantity, build in (
            ("package_energy_j", _package_energy),
            ("package_temp_c", _package_temperature),
            ("cpu_clock_mhz", _clock),
        ):
            try:
                reader = build(root)
                reader()
            except (OSError, ValueError) as error:
                capabilities[quantity] = _reason(error)
            else:
                capabilities[quantity] = "ok"
                self._readers[quantity] = reader
        semantics = {"package_energy_j": "RAPL, sum over packages"} if "package_energy_j" in self._readers else {}
        self._line = DeviceLine(uuid=uuid, name=cpu_model(root), semantics=semantics, capabilities=capabilities)

    def devices(self) -> tuple[DeviceLine, ...]:
        return (self._line,)

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        values: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        begin_ns = time.monotonic_ns()
        for quantity, reader in self._readers.items():
            if quantity in wanted:
                try:
                    values[quantity] = reader()
                except (OSError, ValueError) as error:
                    values[quantity], missing[quantity] = None, _reason(error)
        end_ns = time.monotonic_ns()
        self._plausible.filter(values, missing)
        return SampleLine(
            uuid=uuid, mono_ns=(begin_ns + end_ns) // 2, latency_ns=end_ns - begin_ns, values=values, missing=missing
        )

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        return SnapshotLine(uuid=uuid, when=when, mono_ns=time.monotonic_ns(), values={})


class _Package:
    """A RAPL counter in microjoules that wraps at a limit of its own."""

    def __init__(self, zone: Path) -> None:
        self._counter = zone / "energy_uj"
        self._range = _integer(zone / "max_energy_range_uj")
        self._last = 0
        self._wrapped = 0

    def joules(self) -> float:
        raw = _integer(self._counter)
        if raw < self._last:
            self._wrapped += self._range
        self._last = raw
        return (self._wrapped + raw) / 1e6


def _package_energy(root: Path) -> Reader:
    zones = [
        zone
        for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*"))  # AMD processors appear here too
        if (zone / "name").read_text().startswith("package")
    ]
    if not zones:
        raise FileNotFoundError("no RAPL package in /sys/class/powercap")
    packages = [_Package(zone) for zone in zones]
    return lambda: sum(package.joules() for package in packages)


def _package_temperature(root: Path) -> Reader:
    zones = [
        zone / "temp"
        for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*"))
        if (zone / "type").read_text().strip() in _PACKAGE_ZONES
    ]
    if not zones:
        raise FileNotFoundError("no CPU package zone in /sys/class/thermal")
    return lambda: max(_integer(zone) for zone in zones) / 1000


def _clock(root: Path) -> Reader:
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_cur_freq"))
    if not policies:
        raise FileNotFoundError("no cpufreq policy in /sys/devices/system/cpu")
    return lambda: sum(_integer(policy) for policy in policies) / len(policies) / 1000


def _integer(path: Path) -> int:
    return int(path.read_text())


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return f"permission denied: {error.filename} (readable by root only)"
    return str(error)
