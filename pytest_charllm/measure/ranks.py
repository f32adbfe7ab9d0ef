"""What each rank and its device say by themselves, beside the one value a launch has: who of them is the slow one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from pytest_charllm.measure import power, steps, thermal
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import METRICS, RankReport, Value

CALIBRATIONS = {"matmul_time": "matmul", "copy_time": "copy", "all_reduce_time": "all-reduce"}
"""Metric -> the kind of calibration that it is of."""

Columns = dict[str, tuple[float | None, ...]]

_OF_DEVICE: Mapping[str, Callable[[DeviceWindow], Value]] = {
    "sm_clock": power.sm_clock,
    "core_temp_end": lambda window: thermal.temperature_end(window, "core_temp_c"),
    "throttle_sw_thermal": lambda window: power.throttle_share(window, "throttle_sw_thermal_ns"),
    "throttle_hw_thermal": lambda window: power.throttle_share(window, "throttle_hw_thermal_ns"),
    "throttle_hw_brake": lambda window: power.throttle_share(window, "throttle_hw_brake_ns"),
}


def calibration_time(reports: Sequence[RankReport], metric: str) -> Value:
    """The slowest rank's median over its repetitions, in seconds: CPU time on a CPU, else wall time."""
    times_s = [_calibration_s(report, metric) for report in reports]
    known = [time_s for time_s in times_s if time_s is not None]
    if len(known) < len(times_s):
        return Value(value=None, unit=METRICS[metric].unit, reason=f"no {CALIBRATIONS[metric]} calibration")
    return Value(value=max(known), unit=METRICS[metric].unit, coverage=1.0)


def per_rank(reports: Sequence[RankReport], windows: Sequence[DeviceWindow], is_cpu: bool) -> Columns:
    """Metric -> one number a rank, in rank order; nothing of a single rank, whose numbers are the launch's own."""
    if len(reports) < 2:
        return {}
    columns: Columns = {metric: tuple(_calibration_s(report, metric) for report in reports) for metric in CALIBRATIONS}
    columns["step_time"] = tuple(statistics.median(report.steps.wall_s) if report.steps else None for report in reports)
    if is_cpu:
        columns["cost_cpu"] = tuple(steps.cost_cpu([report]).value for report in reports)
    else:
        beside = [_window_of(report, windows) for report in reports]
        for metric, value_of in _OF_DEVICE.items():
            columns[metric] = tuple(None if window is None else value_of(window).value for window in beside)
    return {metric: column for metric, column in columns.items() if any(value is not None for value in column)}


def _calibration_s(report: RankReport, metric: str) -> float | None:
    kind = CALIBRATIONS[metric]
    for calibration in report.calibration:
        if calibration.kind == kind:
            times_s = calibration.cpu_s or calibration.wall_s
            return statistics.median(times_s) if times_s else None
    return None


def _window_of(report: RankReport, windows: Sequence[DeviceWindow]) -> DeviceWindow | None:
    device = report.device
    return next((window for window in windows if window.line.is_or_holds(device.uuid, device.pci)), None)
