"""A fake of the module `pynvml`, at the level of its calls, with the real binding's structures and exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from pytest_charllm.measure.windows import DeviceWindow, device_windows
from pytest_charllm.records import (
    DeviceLine,
    Launch,
    Meta,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    SampleLine,
    Stack,
    Status,
    Trace,
    WindowEdges,
    tier,
)
from pytest_charllm.scenario.key import parse_key

DOUBLE, UINT, ULONG, ULL, SLL, SINT, USHORT = range(7)
_MEMBER = {DOUBLE: "dVal", UINT: "uiVal", ULONG: "ulVal", ULL: "ullVal", SLL: "sllVal", SINT: "siVal", USHORT: "usVal"}


class FakeNvml:
    """One H200 whose answers can be replaced: `fields[(id, scope)] = (type, raw)` or an int return code,
    `answers[function] = value`, `refusals[function] = code`. What is not listed answers NotSupported.
    """

    NVMLError = pynvml.NVMLError
    P2P_NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    UUID = "GPU-11111111-2222-3333-4444-555555555555"

    def __init__(self) -> None:
        self.called: list[str] = []
        self.absent: set[str] = set()
        self.refusals: dict[str, int] = {}
        self.fields: dict[tuple[int, int], tuple[int, int] | int] = {
            (186, 0): (UINT, 651_327),
            (185, 0): (UINT, 659_811),
            (190, 0): (UINT, 700_000),
            (188, 0): (UINT, 700_000),
            (191, 0): (ULL, 3_581_406_123),
            (82, 0): (UINT, 49),
            (74, 0): (ULL, 2**40 + 7),
            (76, 0): (ULL, 0),
            (269, 0): (ULL, 0),
            (270, 0): (ULL, 0),
            (271, 0): (ULL, 0),
            (193, 0): (SINT, -8),
            (194, 0): (SINT, -2),
        }
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUUID": self.UUID,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:17:00.0"),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
            "nvmlSystemGetDriverVersion": "580.159.04",
            "nvmlSystemGetNVMLVersion": "13.580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetTemperatureThreshold": lambda handle, which: {0: 95, 1: 89}[which],
            "nvmlDeviceGetMaxClockInfo": lambda handle, which: {1: 1980, 2: 3201}[which],
            "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1425, 2: 3201}[which],
            "nvmlDeviceGetTemperatureV": 63,
            "nvmlDeviceGetMarginTemperature": 24,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.absent:
            raise AttributeError(name)

        def function(*args: Any) -> Any:
            self.called.append(name)
            if name in self.refusals:
                raise pynvml.NVMLError(self.refusals[name])
            if name == "nvmlDeviceGetFieldValues":
                return [self._field(*field) for field in args[1]]
            if name not in self.answers:
                raise pynvml.NVMLError(3)
            answer = self.answers[name]
            return answer(*args) if callable(answer) else answer

        return function

    def has_bare_functions(self) -> None:
        """From here on the library's own function behind the binding's can be had, as with the real one."""

        def fields(_: str, count: int, buffer: Any) -> int:
            self.called.append("bare nvmlDeviceGetFieldValues")
            values = (pynvml.c_nvmlFieldValue_t * count).from_buffer(buffer)
            for slot, value in enumerate(values):
                values[slot] = self._field(value.fieldId, value.scopeId)
            return self.refusals.get("nvmlDeviceGetFieldValues", 0)

        def samples(_: str, sampling: int, seen_us: Any, kind: Any, count: Any, buffer: Any) -> int:
            self.called.append("bare nvmlDeviceGetSamples")
            if refused := self.refusals.get("nvmlDeviceGetSamples", 0):
                return refused
            kind._obj.value, kept = self.answers["nvmlDeviceGetSamples"]
            new = [each for each in kept if each.timeStamp > seen_us.value]
            if buffer is None:
                count._obj.value = len(kept)
                return 0
            if len(new) > count._obj.value:
                return 7
            values = (pynvml.c_nvmlSample_t * len(new)).from_buffer(buffer)
            for slot, each in enumerate(new):
                values[slot].timeStamp, values[slot].sampleValue.uiVal = each.timeStamp, each.sampleValue.uiVal
            count._obj.value = len(new)
            return 0

        bare = {"nvmlDeviceGetFieldValues": fields, "nvmlDeviceGetSamples": samples}

        def pointer(name: str) -> Any:
            if name not in bare or (name == "nvmlDeviceGetSamples" and name not in self.answers):
                raise pynvml.NVMLError(13)
            return bare[name]

        self._nvmlGetFunctionPointer = pointer

    def _field(self, id_: int, scope: int) -> Any:
        value = pynvml.c_nvmlFieldValue_t(fieldId=id_, scopeId=scope)
        answer = self.fields.get((id_, scope), 3)
        if isinstance(answer, int):
            value.nvmlReturn = answer
        else:
            value.valueType, raw = answer
            setattr(value.value, _MEMBER.get(value.valueType, "ullVal"), raw)
        return value


@pytest.fixture
def window_of() -> Callable[..., DeviceWindow]:
    """The window of one rank on one device, as the measurement cuts it out of a trace."""

    def cut(line: DeviceLine, samples: Sequence[SampleLine], begin_ns: int, end_ns: int) -> DeviceWindow:
        report = RankReport(
            nonce="n", rank=0, world_size=1, host="h", pid=1, pass_=Pass.TIMED, tokens_per_step=1, parameters=1,
            device=RankDevice(kind="cuda", name=line.name, uuid=line.uuid), attention_backend="none",
            window=WindowEdges(begin_mono_ns=begin_ns, end_mono_ns=end_ns), software=Stack(), phases=Phases(),
        )  # fmt: skip
        launch = Launch(
            id="x", scenario=parse_key("llama3-1b.mb1"), pass_=Pass.TIMED, window=tier("smoke", is_cpu=False).window,
            status=Status.COMPLETED, ranks=(report,),
        )  # fmt: skip
        meta = Meta(source="nvml", host="h", period_s=0.1, pid=1, mono_ns=0, wall_s=0.0, slow_period_s=1.0)
        trace = Trace(meta=meta, devices={line.uuid: line}, samples={line.uuid: tuple(samples)})
        ((window,), reason) = device_windows(launch, trace, is_cpu=False)
        assert reason is None
        return window

    return cut


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()
