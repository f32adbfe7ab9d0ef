"""What the NVIDIA driver measures by itself between two reads: performance metrics (GPM) and the ring of power."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from pytest_charllm.devices.nvml_calls import NvmlError, Samples, call
from pytest_charllm.devices.nvml_fields import GPM, SUCCESS, TIMEOUT, code_name
from pytest_charllm.records.telemetry import RingLine

_SHORTEST_NS = 100_000_000
"""Two samples closer together than this give nothing."""
_VERSION = 1
_TOTAL_POWER = 0
_NOT_FOUND = 6
_CLOCKS_APART_S = 10.0


class Gpm:
    """One GPU's metrics, each the mean since the read before. Raises `NvmlError` where it has none."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], int]) -> None:
        if not call(nvml, "nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise NvmlError(3)
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._samples = [call(nvml, "nvmlGpmSampleAlloc") for _ in range(2)]
        self._took_ns = self._take()

    def read(self) -> dict[str, float | str]:
        """quantity -> value in its unit, or why there is none. Empty where it is too soon for another."""
        if self._clock() - self._took_ns < _SHORTEST_NS:
            return {}
        self._samples.reverse()
        self._took_ns = self._take()
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = _VERSION, len(GPM)
        asked.sample1, asked.sample2 = self._samples
        for slot, (metric, _) in enumerate(GPM.values()):
            asked.metrics[slot].metricId = metric
        answer = call(self._nvml, "nvmlGpmMetricsGet", asked)
        return {
            quantity: _value(answer.metrics[slot], per_unit)
            for slot, (quantity, (_, per_unit)) in enumerate(GPM.items())
        }

    def _take(self) -> int:
        """Into the second of the two; the first is then the older."""
        call(self._nvml, "nvmlGpmSampleGet", self._handle, self._samples[1])
        return self._clock()


class PowerRing:
    """The driver's own series of board power. Raises `NvmlError` where there is none."""

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self._samples, self._uuid = Samples(nvml, handle, _TOTAL_POWER), uuid
        self._seen_us = max((at_us for at_us, _ in self._samples.since(0)), default=0)
        if abs(time.time() - self._seen_us / 1e6) > _CLOCKS_APART_S:
            raise NvmlError(TIMEOUT)  # Stamped by another clock than ours: its readings cannot be placed in time.

    def read(self) -> RingLine | None:
        try:
            samples = self._samples.since(self._seen_us)
        except NvmlError as refused:
            if refused.code == _NOT_FOUND:  # nothing new
                return None
            raise
        new = sorted((at_us, milliwatts) for at_us, milliwatts in samples if at_us > self._seen_us)
        if not new:
            return None
        ahead_ns = time.monotonic_ns() - time.time_ns()
        self._seen_us = new[-1][0]
        return RingLine(
            uuid=self._uuid,
            mono_ns=tuple(at_us * 1000 + ahead_ns for at_us, _ in new),
            power_w=tuple(milliwatts / 1000 for _, milliwatts in new),
        )


def _value(metric: Any, per_unit: float) -> float | str:
    if metric.nvmlReturn != SUCCESS:
        return code_name(metric.nvmlReturn)
    return metric.value / per_unit if math.isfinite(metric.value) else "not a number"
