"""Calling NVML so that every refusal is one exception with its return code, and every field is decoded by its type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_charllm.devices.nvml_fields import (
    FUNCTION_NOT_FOUND,
    REMEDIES,
    SUCCESS,
    VALUE_MEMBERS,
    VERSION_MISMATCH,
    Field,
    code_name,
)
from pytest_charllm.errors import DeviceError


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
