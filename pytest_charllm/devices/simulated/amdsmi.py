"""AMD's `amdsmi` in front of simulated boards: the calls, keys, units and sentinels of each ROCm release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from pytest_charllm.devices.simulated.board import Board, Profile

TICK_UJ = 15.259
_STAMP_START_NS = 1_000_000_000_000
"""The firmware's clock began at another time than ours."""
_MIB = 1 << 20
_NOT_SUPPORTED, _NOT_FOUND, _NOT_INIT, _IO = 2, 31, 32, 12
_REFUSALS = {"lost": _NOT_FOUND, "unknown": _NOT_INIT, "broken": _IO}
LIBRARIES = {
    "6.1": {"year": 24, "major": 5, "minor": 1, "release": 0},
    "6.3": {"year": 24, "major": 7, "minor": 1, "release": 0},
    "6.4": {"major": 25, "minor": 3, "release": 0},
    "7.0": {"major": 26, "minor": 0, "release": 0},
}
"""What the library of each ROCm says of itself."""


class AmdSmiLibraryException(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"Error code:\n\t{code} | AMDSMI_STATUS")
        self._code = code

    def get_error_code(self) -> int:
        return self._code


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 2


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0
    CRITICAL = 5
    EMERGENCY = 7


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class Die(NamedTuple):
    """One GPU as programs see it. `slot` counts them on the node; `package` and `part` say where it sits."""

    uuid: str
    slot: int
    package: int
    part: int
    board: Board


class SimulatedAmdsmi:
    """Takes the place of the module. A handle is a die's place in the list. What is not listed is not supported."""

    AmdSmiInitFlags = AmdSmiInitFlags
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiClkType = AmdSmiClkType
    AmdSmiMemoryType = AmdSmiMemoryType

    def __init__(self, profile: Profile, dies: Sequence[Die], rocm: str = "7.0") -> None:
        self._profile, self._dies, self._rocm = profile, tuple(dies), rocm
        self._has_two_dies = profile.gpus_per_package == 2
        self.__version__ = f"{rocm}.0"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)

        def absent(*_: Any) -> Any:
            raise AmdSmiLibraryException(_NOT_SUPPORTED)

        return absent

    def amdsmi_get_lib_version(self) -> dict[str, Any]:
        return {**LIBRARIES[self._rocm], "build": "simulated"}

    def amdsmi_init(self, _: int) -> None:
        for die in self._dies:
            die.board.restarted()

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self._dies)))

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return self._dies[handle].uuid

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        die = self._dies[handle]
        return f"0000:{0x10 + die.slot:02x}:00.0"

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": self._profile.title, "vendor_id": "0x1002"}

    def amdsmi_get_gpu_board_info(self, handle: int) -> dict[str, Any]:
        return {"product_serial": f"SIM{self._dies[handle].package:04d}", "product_name": "N/A"}

    def amdsmi_get_gpu_enumeration_info(self, handle: int) -> dict[str, Any]:
        if self._rocm < "6.4":
            raise AmdSmiLibraryException(_NOT_SUPPORTED)
        return {"hip_id": self._dies[handle].slot, "hip_uuid": "N/A"}

    def amdsmi_get_gpu_driver_info(self, handle: int) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "simulated"}

    def amdsmi_get_gpu_compute_partition(self, handle: int) -> str:
        return "N/A" if self._has_two_dies else "SPX"

    def amdsmi_get_gpu_memory_total(self, handle: int, _: int) -> int:
        return (65536 if self._has_two_dies else 196608) * _MIB

    def amdsmi_get_power_cap_info(self, handle: int) -> dict[str, int]:
        microwatts = round(self._profile.limit_w * 1e6)
        return {"power_cap": microwatts, "default_power_cap": microwatts, "max_power_cap": microwatts}

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        """An MI250 has the average alone, and only from its first die; later boards the current value alone."""
        die = self._dies[handle]
        if die.part == 0:
            die.board.begin_pass()
        board = self._board(handle)
        readings = board.read()
        current: int | str = "N/A" if self._has_two_dies else round(readings.power_instant_w)
        average: int | str = round(readings.power_average_w) if self._has_two_dies else "N/A"
        if die.part == 1:
            average = 0
        answer: dict[str, Any] = {
            "current_socket_power": current,
            "average_socket_power": average,
            "power_limit": 65535,
        }
        if self._rocm >= "7":
            answer["socket_power"] = average if current == "N/A" else current
        return answer

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, Any]:
        board = self._board(handle)
        if self._dies[handle].part:
            raise AmdSmiLibraryException(_NOT_SUPPORTED)
        ticks = round(board.read().energy_j * 1e6 / TICK_UJ)
        answer = {"counter_resolution": TICK_UJ}
        answer["timestamp"] = _STAMP_START_NS + round(board.refreshed_s(board.now_s()) * 1e9)
        if self._rocm < "6.4":
            answer["power"] = ticks
        if self._rocm >= "6.3":
            answer["energy_accumulator"] = ticks
        return answer

    def amdsmi_get_temp_metric(self, handle: int, kind: int, metric: int) -> int:
        board, die = self._board(handle), self._dies[handle]
        if kind == AmdSmiTemperatureType.EDGE and not self._has_two_dies:
            raise AmdSmiLibraryException(_NOT_SUPPORTED)
        if metric == AmdSmiTemperatureMetric.CRITICAL:
            return round(self._profile.slowdown_c)
        if metric == AmdSmiTemperatureMetric.EMERGENCY:
            return round(self._profile.shutdown_c)
        readings = board.read()
        degrees = readings.hbm_temp_c if kind == AmdSmiTemperatureType.VRAM else readings.core_temp_c
        return round(degrees - (5 if die.part else 0) - (8 if kind == AmdSmiTemperatureType.EDGE else 0))

    def amdsmi_get_clock_info(self, handle: int, kind: int) -> dict[str, Any]:
        board = self._board(handle)
        is_core = kind == AmdSmiClkType.GFX
        mhz = board.read().sm_clock_mhz if is_core else self._profile.mem_mhz
        most = self._profile.sm_max_mhz if is_core else self._profile.mem_mhz
        return {"cur_clk" if self._rocm < "6.2" else "clk": round(mhz), "max_clk": round(most), "min_clk": 0}

    def amdsmi_get_gpu_metrics_info(self, handle: int) -> dict[str, Any]:
        """Accumulators count milliseconds of the firmware; an MI250 has only the bits of the moment."""
        board = self._board(handle)
        readings = board.read()
        if self._has_two_dies:
            return {"throttle_status": readings.capped, "indep_throttle_status": readings.capped}
        accumulators = dict.fromkeys(("socket_thm", "vr_thm", "hbm_thm", "prochot"), 0)
        accumulators["ppt"] = round(readings.power_cap_s * 1e3)
        return {
            "throttle_status": "N/A",
            "indep_throttle_status": "N/A",
            "accumulation_counter": round(board.now_s() * 1e3),
            **{f"{cause}_residency_acc": ticks for cause, ticks in accumulators.items()},
            "xgmi_read_data_acc": [1000 * round(board.now_s()), "N/A"],
            "xgmi_write_data_acc": [2000 * round(board.now_s()), "N/A"],
        }

    def _board(self, handle: int) -> Board:
        board = self._dies[handle].board
        if board.refuses is not None:
            raise AmdSmiLibraryException(_REFUSALS[board.refuses])
        return board
