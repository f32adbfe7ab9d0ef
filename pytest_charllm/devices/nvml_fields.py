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
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
LOST = frozenset({15, 16})
"""Codes after which the device answers nothing any more."""

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

SCOPE_GPU = 0
SCOPE_MODULE = 1
"""On a superchip the module is CPU and GPU together."""

CLOCK_SM = 1
CLOCK_MEM = 2
TEMPERATURE_GPU = 0
THRESHOLD_SHUTDOWN = 0
THRESHOLD_SLOWDOWN = 1
FIELD_POWER_MAX_LIMIT = 188
FIELD_SHUTDOWN_TLIMIT = 193
FIELD_SLOWDOWN_TLIMIT = 194


class Field(NamedTuple):
    """A read through nvmlDeviceGetFieldValues. Raw value / `per_unit` is in the quantity's unit."""

    id: int
    scope: int = SCOPE_GPU
    per_unit: int = 1
    meaning: str | None = None

    def __str__(self) -> str:
        return f"field {self.id}"


class Call(NamedTuple):
    """A read through a function of its own. Raw value / `per_unit` is in the quantity's unit."""

    function: str
    args: tuple[int, ...] = ()
    per_unit: int = 1
    meaning: str | None = None

    def __str__(self) -> str:
        return self.function


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
        Field(191, SCOPE_GPU, 1000, "counter"),
        Call("nvmlDeviceGetTotalEnergyConsumption", (), 1000, "counter"),
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
    "margin_c": (Call("nvmlDeviceGetMarginTemperature"),),
    "sm_clock_mhz": (Call("nvmlDeviceGetClockInfo", (CLOCK_SM,)),),
    "mem_clock_mhz": (Call("nvmlDeviceGetClockInfo", (CLOCK_MEM,)),),
    "event_reasons": (
        Call("nvmlDeviceGetCurrentClocksEventReasons"),
        Call("nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    "throttle_power_cap_ns": (Field(74),),
    "throttle_sw_thermal_ns": (Field(269),),
    "throttle_hw_thermal_ns": (Field(270),),
    "throttle_hw_brake_ns": (Field(271),),
}
"""Quantity -> its reads, best first: the first that answers at the probe is used from then on."""


def code_name(code: int) -> str:
    """``NotSupported (3)``."""
    return f"{RETURN_CODES.get(code, 'code')} ({code})"
