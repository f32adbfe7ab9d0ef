"""NVIDIA GPUs through NVML. Reads only; what each quantity is read from stands in `nvml_fields`."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml_calls import NvmlError, call, optional, read_fields, text
from pytest_charllm.devices.nvml_fields import Call, Field
from pytest_charllm.devices.pci import sysfs_address
from pytest_charllm.devices.plausible import Plausible
from pytest_charllm.devices.source import DeviceLostError
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, SampleLine


@dataclass(frozen=True)
class _Gpu:
    handle: Any
    line: DeviceLine
    reads: dict[str, Field | Call]
    plausible: Plausible


class NvmlSource:
    """`nvml` is the module `pynvml`. Raises `DeviceError` where NVML does not start or lacks a named device."""

    name = "nvml"

    def __init__(self, nvml: Any, uuids: tuple[str, ...]) -> None:
        self._nvml = nvml
        try:
            call(nvml, "nvmlInit")
            handles = [self._handle(uuid) for uuid in uuids] if uuids else self._all_handles()
        except NvmlError as refused:
            raise DeviceError(refused.explain("NVML does not start")) from None
        driver, library = optional(nvml, "nvmlSystemGetDriverVersion"), optional(nvml, "nvmlSystemGetNVMLVersion")
        self.driver = text(driver) if driver else None
        self.library = f"NVML {text(library)}" if library else None
        self._gpus = {gpu.line.uuid: gpu for gpu in map(self._probe, handles)}

    def devices(self) -> tuple[DeviceLine, ...]:
        return tuple(gpu.line for gpu in self._gpus.values())

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        gpu = self._gpus[uuid]
        values: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        begin_ns = time.monotonic_ns()
        for quantity, answer in self._pass(gpu, wanted).items():
            if isinstance(answer, NvmlError) and answer.code in table.LOST:
                raise DeviceLostError(answer.explain(f"{uuid} ({gpu.line.name})"))
            if isinstance(answer, NvmlError | str):
                values[quantity], missing[quantity] = None, str(answer)
            else:
                values[quantity] = answer
        end_ns = time.monotonic_ns()
        gpu.plausible.filter(values, missing)
        return SampleLine(
            uuid=uuid, mono_ns=(begin_ns + end_ns) // 2, latency_ns=end_ns - begin_ns, values=values, missing=missing
        )

    def _pass(self, gpu: _Gpu, wanted: Collection[str]) -> dict[str, float | NvmlError | str]:
        """Every wanted quantity with its value, its refusal, or why it cannot be decoded: fields first, in one call."""
        reads = {quantity: read for quantity, read in gpu.reads.items() if quantity in wanted}
        answers = self._fields(gpu.handle, {q: read for q, read in reads.items() if isinstance(read, Field)})
        for quantity, read in reads.items():
            if isinstance(read, Call):
                try:
                    answers[quantity] = call(self._nvml, read.function, gpu.handle, *read.args) / read.per_unit
                except NvmlError as refused:
                    answers[quantity] = refused
        return answers

    def _fields(self, handle: Any, fields: dict[str, Field]) -> dict[str, float | NvmlError | str]:
        if not fields:
            return {}
        try:
            raw = read_fields(self._nvml, handle, list(fields.values()))
        except NvmlError as refused:
            return dict.fromkeys(fields, refused)
        return {
            quantity: answer / field.per_unit if isinstance(answer, int | float) else answer
            for (quantity, field), answer in zip(fields.items(), raw, strict=True)
        }

    def _handle(self, uuid: str) -> Any:
        try:
            return call(self._nvml, "nvmlDeviceGetHandleByUUID", uuid)
        except NvmlError as refused:
            raise DeviceError(refused.explain(f"NVML does not open {uuid}")) from None

    def _all_handles(self) -> list[Any]:
        count = call(self._nvml, "nvmlDeviceGetCount")
        return [call(self._nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]

    def _probe(self, handle: Any) -> _Gpu:
        """What this GPU is and which reads it answers."""
        nvml = self._nvml
        try:
            uuid, name = text(call(nvml, "nvmlDeviceGetUUID", handle)), text(call(nvml, "nvmlDeviceGetName", handle))
        except NvmlError as refused:
            raise DeviceError(refused.explain("NVML does not name a GPU it opened")) from None
        reads: dict[str, Field | Call] = {}
        capabilities: dict[str, str] = {}
        for quantity in table.READS:
            read, reason = self._first_answering(handle, quantity)
            capabilities[quantity] = reason
            if read is not None:
                reads[quantity] = read
        pci = optional(nvml, "nvmlDeviceGetPciInfo", handle)
        enforced_w = self._once(handle, reads["power_limit_w"]) if "power_limit_w" in reads else None
        line = DeviceLine(
            uuid=uuid,
            name=name,
            pci=sysfs_address(text(pci.busId)) if pci else None,
            power_limit_w=enforced_w,
            slowdown_temp_c=optional(nvml, "nvmlDeviceGetTemperatureThreshold", handle, table.THRESHOLD_SLOWDOWN),
            shutdown_temp_c=optional(nvml, "nvmlDeviceGetTemperatureThreshold", handle, table.THRESHOLD_SHUTDOWN),
            slowdown_tlimit_c=self._once(handle, Field(table.FIELD_SLOWDOWN_TLIMIT)),
            shutdown_tlimit_c=self._once(handle, Field(table.FIELD_SHUTDOWN_TLIMIT)),
            semantics={quantity: read.meaning for quantity, read in reads.items() if read.meaning},
            capabilities=capabilities,
        )
        plausible = Plausible(
            power_limit_w=self._once(handle, Field(table.FIELD_POWER_MAX_LIMIT, per_unit=1000)) or enforced_w,
            sm_clock_max_mhz=optional(nvml, "nvmlDeviceGetMaxClockInfo", handle, table.CLOCK_SM),
            mem_clock_max_mhz=optional(nvml, "nvmlDeviceGetMaxClockInfo", handle, table.CLOCK_MEM),
        )
        return _Gpu(handle, line, reads, plausible)

    def _first_answering(self, handle: Any, quantity: str) -> tuple[Field | Call | None, str]:
        """The first read that answers and "ok", else None and why none does.

        Fields are asked one at a time here: one that an old driver does not know cannot spoil a batch.
        """
        reasons = []
        for read in table.READS[quantity]:
            answer = self._ask(handle, read)
            if isinstance(answer, NvmlError | str):
                reasons.append(f"{read}: {answer}")
            elif quantity == "hbm_temp_c" and answer == 0:
                reasons.append(f"{read}: 0 degC, the board has no sensor")
            else:
                return read, "ok"
        return None, "; ".join(reasons)

    def _once(self, handle: Any, read: Field | Call) -> float | None:
        answer = self._ask(handle, read)
        return None if isinstance(answer, NvmlError | str) else answer

    def _ask(self, handle: Any, read: Field | Call) -> float | NvmlError | str:
        if isinstance(read, Field):
            return self._fields(handle, {"it": read})["it"]
        try:
            return call(self._nvml, read.function, handle, *read.args) / read.per_unit
        except NvmlError as refused:
            return refused
