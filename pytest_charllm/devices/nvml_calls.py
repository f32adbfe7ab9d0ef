"""Calling NVML so that every refusal is one exception with its return code, and every field is decoded by its type."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_charllm.devices.nvml_fields import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    REMEDIES,
    SUCCESS,
    VALUE_FORMATS,
    VALUE_MEMBERS,
    VERSION_MISMATCH,
    Field,
    code_name,
)
from pytest_charllm.errors import DeviceError

_FIELD_VALUE = struct.Struct("@IIqqII8s")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, return code, value."""
_SAMPLE = struct.Struct("@Q8s")
"""nvmlSample_t: timestamp, value."""
_UNPACK = {kind: struct.Struct(f"@{letter}").unpack_from for kind, letter in VALUE_FORMATS.items()}


class NvmlError(Exception):
    """NVML said no: `code` is its return code."""

    def __init__(self, code: int) -> None:
        super().__init__(code_name(code))
        self.code = code

    def explain(self, what: str) -> str:
        """``NVML does not start: LibRmVersionMismatch (18): reboot...``, one line with its remedy."""
        from pytest_charllm.devices.nvml_versions import versions

        remedy = REMEDIES.get(self.code)
        found = versions() if self.code == VERSION_MISMATCH else ""
        return f"{what}: {self}" + (f" ({found})" if found else "") + (f": {remedy}" if remedy else "")


def load_nvml() -> Any:
    """The module `pynvml` of nvidia-ml-py; raises `DeviceError` where it is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise DeviceError(f"NVML binding cannot be imported ({error}): pip install nvidia-ml-py") from None
    return pynvml


def call(nvml: Any, function: str, *args: Any) -> Any:
    """The function's answer; raises `NvmlError`, also where binding or driver are too old to have the function."""
    known = getattr(nvml, function, None)
    if known is None:
        raise NvmlError(FUNCTION_NOT_FOUND)
    try:
        return known(*args)
    except nvml.NVMLError as error:
        raise NvmlError(error.value) from None


def optional(nvml: Any, function: str, *args: Any) -> Any | None:
    """As `call`, with None for a refusal: for what is nice to have on record."""
    try:
        return call(nvml, function, *args)
    except NvmlError:
        return None


def text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


class Raw(NamedTuple):
    """A field's value as it came, with its value type."""

    value: int | float
    type: int


def read_fields(nvml: Any, handle: Any, fields: Sequence[Field]) -> list[Raw | NvmlError | str]:
    """Raw values of several fields in one call, each with its own refusal, or a reason where it cannot be decoded.

    The call as a whole succeeds even where every field in it failed. Raises `NvmlError` when the call itself fails.
    """
    answers = call(nvml, "nvmlDeviceGetFieldValues", handle, [(field.id, field.scope) for field in fields])
    return [_decode(answer) for answer in answers]


def _decode(answer: Any) -> Raw | NvmlError | str:
    if answer.nvmlReturn != SUCCESS:
        return NvmlError(answer.nvmlReturn)
    member = VALUE_MEMBERS.get(answer.valueType)
    if member is None:
        return f"unknown value type {answer.valueType}"
    return Raw(getattr(answer.value, member), answer.valueType)


class Batch:
    """Fields that are read over and over, as `read_fields` does, through one buffer and in one go.

    Ten times a second the binding, which fills in a new structure member by member, would cost more than the read.
    """

    def __init__(self, nvml: Any, fields: Sequence[Field]) -> None:
        self._nvml, self._fields = nvml, fields
        self._asked = b"".join(_FIELD_VALUE.pack(field.id, field.scope, 0, 0, 0, 0, b"") for field in fields)
        self._values = ctypes.create_string_buffer(len(self._asked))
        self._function = bare(nvml, "nvmlDeviceGetFieldValues")

    def read(self, handle: Any) -> list[Raw | NvmlError | str]:
        if self._function is None:
            return read_fields(self._nvml, handle, self._fields)
        ctypes.memmove(self._values, self._asked, len(self._asked))  # nothing of an earlier read may be taken for one
        code = self._function(handle, len(self._fields), self._values)
        if code != SUCCESS:
            raise NvmlError(code)
        return [_unpacked(kind, code, raw) for *_, kind, code, raw in _FIELD_VALUE.iter_unpack(self._values)]


class Samples:
    """What the driver keeps of one sampling type, newer than an instant, in one call.

    The binding makes two, the first to ask how many there can be at most, and each costs a third of a millisecond.
    """

    def __init__(self, nvml: Any, handle: Any, sampling: int) -> None:
        self._nvml, self._handle, self._sampling = nvml, handle, sampling
        self._function = bare(nvml, "nvmlDeviceGetSamples")
        self._room = 2 * self._get(0, 0, None)[1] if self._function is not None else 0
        self._values = ctypes.create_string_buffer(_SAMPLE.size * self._room)

    def since(self, seen_us: int) -> list[tuple[int, int | float]]:
        """(microseconds, raw value), in the driver's order. Raises `NvmlError`, also where there is nothing new."""
        if self._room:
            kind, count = self._get(seen_us, self._room, self._values)
            if count < self._room:  # else there may be more of them
                unpack, used = _UNPACK.get(kind), memoryview(self._values)[: count * _SAMPLE.size]
                return [(at_us, unpack(raw)[0]) for at_us, raw in _SAMPLE.iter_unpack(used)] if unpack else []
        kind, samples = call(self._nvml, "nvmlDeviceGetSamples", self._handle, self._sampling, seen_us)
        member = VALUE_MEMBERS.get(kind)
        return [(each.timeStamp, getattr(each.sampleValue, member)) for each in samples] if member else []

    def _get(self, seen_us: int, room: int, values: Any) -> tuple[int, int]:
        """(value type, how many), of at most `room`; as many as that where there is not room enough."""
        kind, count = ctypes.c_uint(), ctypes.c_uint(room)
        code = self._function(
            self._handle, self._sampling, ctypes.c_ulonglong(seen_us), ctypes.byref(kind), ctypes.byref(count), values
        )
        if code == INSUFFICIENT_SIZE:
            return kind.value, max(room, count.value)
        if code != SUCCESS:
            raise NvmlError(code)
        return kind.value, count.value


def bare(nvml: Any, function: str) -> Any:
    """The library's own function behind the binding's; None for another binding, or a driver too old to have it."""
    try:
        return nvml._nvmlGetFunctionPointer(function)
    except (AttributeError, nvml.NVMLError):
        return None


def _unpacked(kind: int, code: int, raw: bytes) -> Raw | NvmlError | str:
    if code != SUCCESS:
        return NvmlError(code)
    unpack = _UNPACK.get(kind)
    return Raw(unpack(raw)[0], kind) if unpack is not None else f"unknown value type {kind}"
