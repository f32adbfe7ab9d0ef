"""NVML's numbers as tables: return codes, value types, and which reads answer each quantity.

The numbers are literals of our own, from NVIDIA's `nvml.h`, because names come and go between binding versions while
the numbers are the library's interface.
"""

from __future__ import annotations

from typing import NamedTuple

RETURN_CODES = {
    1: "Uninitialized",
    2: "InvalidArgument",
    3: "NotSupported",
    4: "NoPermission",
    6: "NotFound",
    7: "InsufficientSize",
    8: "InsufficientPower",
    9: "DriverNotLoaded",
    10: "Timeout",
    11: "IrqIssue",
    12: "LibraryNotFound",
    13: "FunctionNotFound",
    14: "CorruptedInforom",
    15: "GpuIsLost",
    16: "ResetRequired",
    17: "OperatingSystem",
    18: "LibRmVersionMismatch",
    19: "InUse",
    20: "Memory",
    21: "NoData",
    25: "ArgumentVersionMismatch",
    26: "Deprecated",
    27: "NotReady",
    28: "GpuNotFound",
    29: "InvalidState",
    999: "Unknown",
}
SUCCESS = 0
UNINITIALIZED = 1
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
VERSION_MISMATCH = 18
LOST = frozenset({15, 16})
"""Codes after which the device answers nothing any more."""
STALE = frozenset({UNINITIALIZED, 999})
"""Codes that starting the library anew may cure: a container's device access is gone after a daemon-reload."""

REMEDIES = {
    4: "give this user access to /dev/nvidia*",
    9: "load the nvidia kernel module and look into dmesg",
    12: "install the NVIDIA driver's libnvidia-ml.so.1, or start the container with its GPUs (--gpus all)",
    15: "the GPU fell off the bus: look for Xid 79 in dmesg, then reset it or reboot",
    16: "reset the GPU or reboot",
    17: "the operating system (cgroup, sandbox) blocks /dev/nvidia*: ask for the GPUs in the job or container",
    18: "kernel module and driver library are of different versions: reboot, or reload the nvidia module",
    999: "restart the container (its device access may be gone after a daemon-reload), else look into dmesg",
}

VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Value type of a field -> the member of its union. Any other member reads garbage, or loses sign or upper half."""
VALUE_FORMATS = {0: "d", 1: "I", 2: "L", 3: "Q", 4: "q", 5: "i", 6: "H"}
"""The same for the module `struct`."""

SCOPE_GPU = 0
SCOPE_MODULE = 1
"""On a superchip the module is CPU and GPU together."""
ALL_LINKS = 0xFFFFFFFF
"""As the scope of an NVLink field: the sum over all links. 0 would be the first of them alone."""
VALUE_UINT = 1

CLOCK_SM = 1
CLOCK_MEM = 2
TEMPERATURE_GPU = 0
THRESHOLD_SHUTDOWN = 0
THRESHOLD_SLOWDOWN = 1
FIELD_POWER_MAX_LIMIT = 188
FIELD_SHUTDOWN_TLIMIT = 193
FIELD_SLOWDOWN_TLIMIT = 194
POLICY_POWER, POLICY_THERMAL, POLICY_SYNC_BOOST, POLICY_BOARD = 0, 1, 2, 3
"""Of nvmlDeviceGetViolationStatus. Later ones rise on healthy devices, and are not read."""


class Field(NamedTuple):
    """A read through nvmlDeviceGetFieldValues. Raw value / `per_unit` is in the quantity's unit.

    `dear`: the read takes a tenth of a millisecond to several, so it belongs to the slow tier.
    """

    id: int
    scope: int = SCOPE_GPU
    per_unit: int = 1
    meaning: str | None = None
    dear: bool = False

    def __str__(self) -> str:
        return f"field {self.id}"


class Call(NamedTuple):
    """A read through a function of its own. Raw value / `per_unit` is in the quantity's unit.

    `attribute`: where the function answers with a structure, the member meant.
    """

    function: str
    args: tuple[int, ...] = ()
    per_unit: int = 1
    meaning: str | None = None
    dear: bool = False
    attribute: str | None = None

    def __str__(self) -> str:
        return self.function


def _violation(policy: int) -> Call:
    """Older drivers keep time under a cause only here."""
    meaning = "violation status"
    return Call("nvmlDeviceGetViolationStatus", (policy,), meaning=meaning, dear=True, attribute="violationTime")


READS: dict[str, tuple[Field | Call, ...]] = {
    "power_instant_w": (
        Field(186, SCOPE_GPU, 1000, "instant, GPU scope"),
        Field(186, SCOPE_MODULE, 1000, "instant, module scope"),
    ),
    "power_average_w": (
        Field(185, SCOPE_GPU, 1000, "1 s average, GPU scope"),
        Field(185, SCOPE_MODULE, 1000, "1 s average, module scope"),
    ),
    "energy_j": (
        Field(191, SCOPE_GPU, 1000, "counter", dear=True),
        Call("nvmlDeviceGetTotalEnergyConsumption", (), 1000, "counter", dear=True),
    ),
    "power_limit_w": (
        Field(190, SCOPE_GPU, 1000, "enforced"),
        Call("nvmlDeviceGetEnforcedPowerLimit", (), 1000, "enforced"),
    ),
    "core_temp_c": (
        Call("nvmlDeviceGetTemperatureV", (TEMPERATURE_GPU,)),
        Call("nvmlDeviceGetTemperature", (TEMPERATURE_GPU,)),
    ),
    "hbm_temp_c": (Field(82),),
    "margin_c": (Call("nvmlDeviceGetMarginTemperature", dear=True),),
    "sm_clock_mhz": (Call("nvmlDeviceGetClockInfo", (CLOCK_SM,)),),
    "mem_clock_mhz": (Call("nvmlDeviceGetClockInfo", (CLOCK_MEM,)),),
    "event_reasons": (
        Call("nvmlDeviceGetCurrentClocksEventReasons"),
        Call("nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    "throttle_power_cap_ns": (Field(74), _violation(POLICY_POWER)),
    "throttle_sw_thermal_ns": (Field(269), _violation(POLICY_THERMAL)),
    "throttle_hw_thermal_ns": (Field(270, dear=True),),
    "throttle_hw_brake_ns": (Field(271, dear=True), _violation(POLICY_BOARD)),
    "throttle_sync_boost_ns": (Field(76), _violation(POLICY_SYNC_BOOST)),
    "link_tx_kib": (Field(138, ALL_LINKS, meaning="NVLink data, all links", dear=True),),
    "link_rx_kib": (Field(139, ALL_LINKS, meaning="NVLink data, all links", dear=True),),
    "pcie_tx_kib": (Field(197, per_unit=1024, meaning="PCIe bytes"),),
    "pcie_rx_kib": (Field(198, per_unit=1024, meaning="PCIe bytes"),),
}
"""Quantity -> its reads, best first: the first that answers at the probe is used from then on."""

MAY_WRAP = frozenset({"pcie_tx_kib", "pcie_rx_kib"})
"""Byte counters that some drivers deliver in 32 bits."""

GPM: dict[str, tuple[int, float]] = {
    "sm_active_share": (2, 100.0),
    "tensor_active_share": (5, 100.0),
    "dram_active_share": (10, 100.0),
    "pcie_tx_mib_per_s": (20, 1.0),
    "pcie_rx_mib_per_s": (21, 1.0),
    "link_rx_mib_per_s": (60, 1.0),
    "link_tx_mib_per_s": (61, 1.0),
}
"""Quantity -> its GPU performance metric (Hopper and newer), and the raw value in one unit of the quantity."""

HEALTH_FIELDS: dict[str, tuple[Field, ...]] = {
    "ecc_corrected": (Field(3),),
    "ecc_uncorrected": (Field(4),),
    "remapped_rows": (Field(142), Field(143)),
    "remap_pending": (Field(144), Field(31)),
    "remap_failed": (Field(145),),
    "pcie_replays": (Field(94),),
    "pcie_errors": (Field(173), Field(179), Field(180)),
    "link_count": (Field(91),),
    "link_errors": (Field(161, ALL_LINKS), Field(162, ALL_LINKS), Field(163, ALL_LINKS)),
}
"""Entry of a snapshot -> the fields whose sum it is. What a board does not have is left out of the sum."""


def code_name(code: int) -> str:
    """``NotSupported (3)``."""
    return f"{RETURN_CODES.get(code, 'code')} ({code})"
