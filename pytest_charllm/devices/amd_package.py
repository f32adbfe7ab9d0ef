"""One physical AMD package: what it answers, under which key, in which unit; its dies taken together."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from pytest_charllm.devices.amd_calls import LOST, AmdError, call, number, numbers, optional
from pytest_charllm.devices.amd_identity import Die
from pytest_charllm.devices.plausible import Plausible
from pytest_charllm.records.telemetry import DeviceLine, Part, SnapshotLine

Answer = float | AmdError | str

_ENERGY_KEYS = ("energy_accumulator", "power")
"""Of amdsmi_get_energy_count: from 6.3 on, and until then."""
_CLOCK_KEYS = ("clk", "cur_clk")
"""Of amdsmi_get_clock_info: from 6.2 on, and before."""
RESIDENCIES: dict[str, tuple[str, ...]] = {
    "throttle_power_cap_ns": ("ppt_residency_acc",),
    "throttle_sw_thermal_ns": ("socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"),
    "throttle_hw_thermal_ns": ("prochot_residency_acc",),
}
"""Quantity -> the accumulators of gpu_metrics (MI300 and newer) whose sum it is."""
_TICKS = "accumulation_counter"
_LINKS = {"link_rx_kib": "xgmi_read_data_acc", "link_tx_kib": "xgmi_write_data_acc"}
_METRICS = (*RESIDENCIES, *_LINKS, "throttled")
_MICROWATT_FROM = 10_000
"""A power limit above this is in microwatts: ROCm 6.1.2 changed the unit of the same key."""
_MILLIDEGREES_FROM = 200
_MAX_CLOCK = "max_clk"
_STAMPS = 64
"""So many reads the offset of the stamps' clock is the least of: over a night the two drift apart."""
_STAMP_AGE_NS = 500_000_000
"""A stamp that is older is of another unit, or of a clock that runs at another rate: nothing is known of its time."""


class Package:
    """The first die speaks for power, energy and accumulators of the whole package: on an MI250 it alone can, and
    partitions of an MI300 all repeat the same. `energy_at_ns`: when the last energy was true, on our clock.
    """

    def __init__(self, smi: Any, parts: tuple[Die, ...]) -> None:
        self._smi, self._parts = smi, parts
        self._first = parts[0].handle
        self._offsets_ns: deque[int] = deque(maxlen=_STAMPS)
        self._start_ticks: int | None = None
        self.energy_at_ns: int | None = None
        self._residency = _Residency()
        self._semantics: dict[str, str] = {}
        slowdown_c = self._limit_c("CRITICAL")
        self._slowdown_c = slowdown_c
        capabilities = {}
        for quantity, read in self._reads().items():
            answer = _asked(read)
            capabilities[quantity] = "ok" if isinstance(answer, float) else str(answer)
        capabilities |= self._metrics_capabilities()
        if len(parts) > 1:
            self._one_sensor(capabilities)
        limit_w = self._cap("power_cap")
        self.line = DeviceLine(
            uuid=parts[0].uuid,
            name=parts[0].name,
            pci=parts[0].pci,
            power_limit_w=limit_w,
            slowdown_temp_c=slowdown_c,
            shutdown_temp_c=self._limit_c("EMERGENCY"),
            semantics={q: meaning for q, meaning in self._semantics.items() if capabilities.get(q) == "ok"},
            capabilities=capabilities,
            slow=("power_limit_w",),
            parts=tuple(Part(uuid=die.uuid, pci=die.pci) for die in parts) if len(parts) > 1 else (),
        )
        self.plausible = Plausible(
            power_limit_w=self._cap("max_power_cap") or limit_w,
            sm_clock_max_mhz=self._max_clock("GFX"),
            mem_clock_max_mhz=self._max_clock("MEM"),
        )

    def distrust(self, quantity: str, reason: str) -> None:
        """Turn a quantity off for good."""
        self.line.capabilities[quantity] = reason

    def read(self, wanted: Collection[str], clock: Callable[[], int]) -> dict[str, Answer]:
        """Every wanted quantity that this package has, with its value or why there is none."""
        reads = self._reads(clock)
        answers = {quantity: _asked(read) for quantity, read in reads.items() if quantity in wanted}
        if not set(_METRICS).isdisjoint(wanted):
            answers |= {q: answer for q, answer in self._metrics(clock).items() if q in wanted}
        return answers

    def snapshot(self, when: str, mono_ns: int) -> SnapshotLine:
        values: dict[str, float | str | None] = {}
        missing: dict[str, str] = {}
        counts = [optional(self._smi, "amdsmi_get_gpu_total_ecc_count", die.handle) for die in self._parts]
        for entry, key in (("ecc_corrected", "correctable_count"), ("ecc_uncorrected", "uncorrectable_count")):
            known = [value for count in counts if count and (value := number(count.get(key))) is not None]
            values[entry] = sum(known) if known else None
        values["default_power_limit_w"] = self._cap("default_power_cap")
        partition = optional(self._smi, "amdsmi_get_gpu_compute_partition", self._first)
        values["partition"] = str(partition) if partition and partition != "N/A" else None
        missing = {entry: "amdsmi does not tell" for entry, value in values.items() if value is None}
        return SnapshotLine(uuid=self.line.uuid, when=when, mono_ns=mono_ns, values=values, missing=missing)

    def _reads(self, clock: Callable[[], int] | None = None) -> dict[str, Callable[[], Answer]]:
        return {
            "power_instant_w": lambda: self._power(is_average=False),
            "power_average_w": lambda: self._power(is_average=True),
            "energy_j": lambda: self._energy(clock),
            "power_limit_w": self._power_limit,
            "core_temp_c": self._core_temp_c,
            "hbm_temp_c": self._hbm_temp_c,
            "margin_c": self._margin_c,
            "sm_clock_mhz": lambda: self._clock_mhz("GFX"),
            "mem_clock_mhz": lambda: self._clock_mhz("MEM"),
        }

    def _power(self, *, is_average: bool) -> Answer:
        """`socket_power` (7.x) is whichever of the other two this board has, so those say what it means."""
        answer = call(self._smi, "amdsmi_get_power_info", self._first)
        current, average = number(answer.get("current_socket_power")), number(answer.get("average_socket_power"))
        socket = number(answer.get("socket_power"))
        key, value = ("average_socket_power", average) if is_average else ("current_socket_power", current)
        if value is None and not is_average and average is None:
            key, value = "socket_power", socket
        if value is None:
            return f"amdsmi_get_power_info: {key} is {answer.get(key, 'absent')}"
        self._semantics["power_average_w" if is_average else "power_instant_w"] = f"{key}, whole package"
        return value

    def _energy(self, clock: Callable[[], int] | None) -> Answer:
        """Ticks are subtracted as integers: their product with the resolution has no room for the last joules."""
        answer = call(self._smi, "amdsmi_get_energy_count", self._first)
        ticks = next((answer[key] for key in _ENERGY_KEYS if number(answer.get(key)) is not None), None)
        resolution_uj = number(answer.get("counter_resolution"))
        if ticks is None or not resolution_uj:
            return "amdsmi_get_energy_count: no counter in the answer"
        self._start_ticks = ticks if self._start_ticks is None else self._start_ticks
        stamp_ns = number(answer.get("timestamp"))
        self.energy_at_ns = None
        if stamp_ns and clock is not None:
            # The stamp's own clock is as far behind ours as the quickest read was late, at most.
            now_ns, stamp = clock(), int(answer["timestamp"])
            self._offsets_ns.append(now_ns - stamp)
            at_ns = stamp + min(self._offsets_ns)
            self.energy_at_ns = at_ns if now_ns - at_ns <= _STAMP_AGE_NS else None
        self._semantics["energy_j"] = "counter since opening, whole package"
        return (ticks - self._start_ticks) * resolution_uj * 1e-6

    def _power_limit(self) -> Answer:
        limit_w = self._cap("power_cap")
        self._semantics["power_limit_w"] = "enforced"
        return "amdsmi_get_power_cap_info: no power_cap" if limit_w is None else limit_w

    def _cap(self, key: str) -> float | None:
        return power_cap_w(self._smi, self._first, key)

    def _core_temp_c(self) -> Answer:
        """The hot spot, which every board has; the edge has another meaning and is only named where it is all."""
        hottest = self._hottest_c("HOTSPOT")
        sensor = "hot spot"
        if not isinstance(hottest, float):
            hottest, sensor = self._hottest_c("EDGE"), "edge"
        self._semantics["core_temp_c"] = f"{sensor}, hottest die"
        return hottest

    def _hbm_temp_c(self) -> Answer:
        return self._hottest_c("VRAM")

    def _margin_c(self) -> Answer:
        hottest = self._hottest_c("HOTSPOT")
        if self._slowdown_c is None:
            return "amdsmi_get_temp_metric: no CRITICAL limit of the hot spot"
        self._semantics["margin_c"] = "critical limit of the hot spot minus its temperature"
        return self._slowdown_c - hottest if isinstance(hottest, float) else hottest

    def _hottest_c(self, sensor: str) -> Answer:
        kind, metric = self._smi.AmdSmiTemperatureType[sensor], self._smi.AmdSmiTemperatureMetric["CURRENT"]
        degrees: list[Answer] = []
        for die in self._parts:
            try:
                degrees.append(_degrees(call(self._smi, "amdsmi_get_temp_metric", die.handle, kind, metric)))
            except AmdError as refused:
                if refused.code in LOST:
                    raise
                degrees.append(str(refused))
        known = [each for each in degrees if isinstance(each, float)]
        return max(known) if known else f"amdsmi_get_temp_metric {sensor}: {degrees[0]}"

    def _limit_c(self, metric: str) -> float | None:
        kinds, metrics = self._smi.AmdSmiTemperatureType, self._smi.AmdSmiTemperatureMetric
        if metric not in metrics.__members__:
            return None
        told = optional(self._smi, "amdsmi_get_temp_metric", self._first, kinds["HOTSPOT"], metrics[metric])
        degrees = _degrees(told)
        return degrees if isinstance(degrees, float) else None

    def _clock_mhz(self, kind: str) -> Answer:
        """Mean over dies. Where a die is made of several, its own number is already one for all."""
        clock = self._smi.AmdSmiClkType[kind]
        answers = [call(self._smi, "amdsmi_get_clock_info", die.handle, clock) for die in self._parts]
        known = [v for a in answers if (v := next((number(a[k]) for k in _CLOCK_KEYS if k in a), None)) is not None]
        return statistics.fmean(known) if known else f"amdsmi_get_clock_info {kind}: N/A"

    def _max_clock(self, kind: str) -> float | None:
        info = optional(self._smi, "amdsmi_get_clock_info", self._first, self._smi.AmdSmiClkType[kind])
        return number(info.get(_MAX_CLOCK)) if info else None

    def _metrics_capabilities(self) -> dict[str, str]:
        try:
            metrics = call(self._smi, "amdsmi_get_gpu_metrics_info", self._first)
        except AmdError as refused:
            return dict.fromkeys((*_METRICS, "throttle_hw_brake_ns"), f"gpu_metrics: {refused}")
        told = {"throttle_hw_brake_ns": "AMD has no counter of a power brake"}
        for quantity, keys in RESIDENCIES.items():
            absent = [key for key in (*keys, _TICKS) if number(metrics.get(key)) is None]
            told[quantity] = f"gpu_metrics: no {absent[0]}" if absent else "ok"
            self._semantics[quantity] = f"residency: {' + '.join(keys)}"
        for quantity, key in _LINKS.items():
            told[quantity] = "ok" if numbers(metrics.get(key)) else f"gpu_metrics: no {key}"
            self._semantics[quantity] = "xGMI accumulators, all links"
        told["throttled"] = "ok" if _throttled(metrics) is not None else "gpu_metrics: no throttle status"
        return told

    def _metrics(self, clock: Callable[[], int]) -> dict[str, Answer]:
        on = [quantity for quantity in _METRICS if self.line.capabilities.get(quantity) == "ok"]
        try:
            metrics = call(self._smi, "amdsmi_get_gpu_metrics_info", self._first)
        except AmdError as refused:
            return dict.fromkeys(on, refused)
        answers: dict[str, Answer] = {}
        counted = self._residency.add(metrics, clock())
        for quantity in on:
            if quantity in RESIDENCIES:
                answers[quantity] = counted.get(quantity, f"gpu_metrics: no {RESIDENCIES[quantity][0]}")
            elif quantity in _LINKS:
                moved = numbers(metrics.get(_LINKS[quantity]))
                answers[quantity] = sum(moved) if moved else f"gpu_metrics: no {_LINKS[quantity]}"
            else:
                status = _throttled(metrics)
                answers[quantity] = "gpu_metrics: no throttle status" if status is None else status
        return answers

    def _one_sensor(self, capabilities: dict[str, str]) -> None:
        """Two dies that both claim a power of their own would make the package's unknown."""
        claims = [_claims_power(self._smi, die) for die in self._parts]
        numbered = [claim for claim in claims if claim is not None and claim > 0]
        if len(numbered) > 1 and max(numbered) - min(numbered) > 0.02 * max(numbered):
            for quantity in ("power_instant_w", "power_average_w", "energy_j"):
                shown = ", ".join(f"{claim:g} W" for claim in numbered)
                capabilities[quantity] = f"the dies of one package report {shown}: which is the package's is not known"


def power_cap_w(smi: Any, handle: Any, key: str) -> float | None:
    """One entry of amdsmi_get_power_cap_info, in watts."""
    info = optional(smi, "amdsmi_get_power_cap_info", handle)
    watts = number(info.get(key)) if info else None
    return watts / 1e6 if watts is not None and watts > _MICROWATT_FROM else watts


class _Residency:
    """Time under each cause, from accumulators that count firmware ticks of unknown length.

    Of the ticks between two reads, the share under a cause is that share of the time between them.
    """

    def __init__(self) -> None:
        self._last: tuple[int, dict[str, float]] | None = None
        self._total_ns = dict.fromkeys(RESIDENCIES, 0.0)

    def add(self, metrics: dict[str, Any], now_ns: int) -> dict[str, float]:
        keys = (_TICKS, *(key for group in RESIDENCIES.values() for key in group))
        current = {key: value for key in keys if (value := number(metrics.get(key))) is not None}
        last, self._last = self._last, (now_ns, current)
        ticks = current.get(_TICKS, 0.0) - last[1].get(_TICKS, 0.0) if last is not None else 0.0
        told = {}
        for quantity, group in RESIDENCIES.items():
            if not current.keys() >= {_TICKS, *group}:
                continue
            if last is not None and ticks > 0 and last[1].keys() >= set(group):
                share = sum(current[key] - last[1][key] for key in group) / ticks
                self._total_ns[quantity] += min(1.0, max(0.0, share)) * (now_ns - last[0])
            told[quantity] = self._total_ns[quantity]
        return told


def _asked(read: Callable[[], Answer]) -> Answer:
    try:
        return read()
    except AmdError as refused:
        return refused


def _degrees(told: Any) -> float | str:
    """In whole degrees by now, in thousandths by the documentation; divided twice it is 0, which no board is at."""
    degrees = number(told)
    if degrees is None:
        return f"{told}"
    degrees = degrees / 1000 if abs(degrees) > _MILLIDEGREES_FROM else degrees
    return degrees if degrees != 0 else "implausible: 0"


def _throttled(metrics: dict[str, Any]) -> float | None:
    for key in ("indep_throttle_status", "throttle_status"):
        status = number(metrics.get(key))
        if status is not None:
            return float(status != 0)
    return None


def _claims_power(smi: Any, die: Die) -> float | None:
    info = optional(smi, "amdsmi_get_power_info", die.handle) or {}
    keys = ("socket_power", "current_socket_power", "average_socket_power")
    return next((watts for key in keys if (watts := number(info.get(key))) is not None), None)
