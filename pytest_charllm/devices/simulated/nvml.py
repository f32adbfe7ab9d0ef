"""NVIDIA's `pynvml` in front of simulated boards: the calls, codes, units and value types of the real one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from pytest_charllm.devices.nvml_fields import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    VALUE_MEMBERS,
    code_name,
)
from pytest_charllm.devices.simulated.board import Board, Readings

_UINT, _ULL, _SINT = 1, 3, 5
_IDLE, _POWER_CAP = 0x1, 0x4
_REFUSALS = {"lost": 15, "unknown": 999, "broken": 999}
_NOT_FOUND = 6


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(code_name(value))
        self.value = value


class SimulatedNvml:
    """Takes the place of the module. A handle is the board's UUID. What is not listed here answers NotSupported."""

    NVMLError = NVMLError

    def __init__(self, boards: Mapping[str, Board]) -> None:
        self._boards = boards
        self._started = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def absent(*_: Any) -> Any:
            raise NVMLError(NOT_SUPPORTED if name.startswith("nvmlDeviceGet") else FUNCTION_NOT_FOUND)

        return absent

    def nvmlInit(self) -> None:  # noqa: N802 - the vendor's name, here and below
        self._started = True
        for board in self._boards.values():
            board.restarted()

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._started = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "simulated"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self._boards)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self._boards:
            raise NVMLError(_NOT_FOUND)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return self._board(handle).profile.title

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:{list(self._boards).index(handle) + 1:02X}:00.0")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return round(self._board(handle).profile.limit_w * 1000)

    def nvmlDeviceGetTemperatureThreshold(self, handle: str, which: int) -> int:  # noqa: N802
        profile = self._board(handle).profile
        return round(profile.slowdown_c if which == 1 else profile.shutdown_c)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, which: int) -> int:  # noqa: N802
        profile = self._board(handle).profile
        return round(profile.sm_max_mhz if which == 1 else profile.mem_mhz)

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:  # noqa: N802
        board = self._board(handle)
        return round(board.read().sm_clock_mhz if which == 1 else board.profile.mem_mhz)

    def nvmlDeviceGetTemperatureV(self, handle: str, _: int) -> int:  # noqa: N802
        return round(self._board(handle).read().core_temp_c)

    def nvmlDeviceGetMarginTemperature(self, handle: str) -> int:  # noqa: N802
        board = self._board(handle)
        return round(board.profile.slowdown_c - board.read().core_temp_c)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        readings = self._board(handle).read()
        return _POWER_CAP if readings.capped else 0 if readings.loaded else _IDLE

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        board = self._board(handle)
        if len(fields) > 1 and any(field == 186 for field, _ in fields):  # one of these a pass, and none at the probe
            board.begin_pass()
            board = self._board(handle)
        readings = board.read()
        return [_field(board, readings, field, scope) for field, scope in fields]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        """A stranger, where that is the fault: the process that started us, which is not of our making."""
        board = self._board(handle)
        return [SimpleNamespace(pid=os.getppid(), usedGpuMemory=None)] if board.has_company else []

    def _board(self, handle: str) -> Board:
        if not self._started:
            raise NVMLError(UNINITIALIZED)
        board = self._boards[handle]
        if board.refuses is not None:
            raise NVMLError(_REFUSALS[board.refuses])
        return board


def _field(board: Board, readings: Readings, field: int, scope: int) -> Any:
    profile = board.profile
    known: dict[int, tuple[int, float]] = {
        186: (_UINT, readings.power_instant_w * 1000),
        185: (_UINT, readings.power_average_w * 1000),
        190: (_UINT, profile.limit_w * 1000),
        188: (_UINT, profile.limit_w * 1000),
        191: (_ULL, readings.energy_j * 1000),
        82: (_UINT, readings.hbm_temp_c),
        74: (_ULL, readings.power_cap_s * 1e9),
        269: (_ULL, 0),
        270: (_ULL, 0),
        271: (_ULL, 0),
        76: (_ULL, 0),
        194: (_SINT, -2),
        193: (_SINT, -8),
    }
    if field not in known or scope != 0:
        return SimpleNamespace(nvmlReturn=NOT_SUPPORTED, valueType=0, value=SimpleNamespace())
    kind, value = known[field]
    return SimpleNamespace(
        nvmlReturn=SUCCESS, valueType=kind, value=SimpleNamespace(**{VALUE_MEMBERS[kind]: round(value)})
    )
