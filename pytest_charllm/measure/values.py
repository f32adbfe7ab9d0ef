"""Every metric of one launch: those of the ranks' own clocks and memory, and those of the devices' sensors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pytest_charllm.hardware import Machine
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.measure import links, power, steps, thermal
from pytest_charllm.measure.ranks import CALIBRATIONS, calibration_time
from pytest_charllm.measure.windows import DeviceWindow, over_devices
from pytest_charllm.records import METRICS, Launch, RankReport, Value
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.scenario import Collective, Precision, Scenario, Script
from pytest_charllm.scenario.flops import FLOP_FORMULA, flops_per_token

_CORE_TEMPERATURE = {True: "package_temp_c", False: "core_temp_c"}
"""By whether it is a CPU."""

DEVICE_METRICS = (
    "energy_per_token",
    "mean_power",
    "peak_power",
    "peak_power_max",
    "power_burstiness",
    "core_temp_end",
    "hbm_temp_end",
    "core_temp_p95",
    "hbm_temp_p95",
    "core_temp_spread",
    "core_temp_slope",
    "core_temp_steady",
    "heating",
    "thermal_resistance",
    "margin_min",
    "throttle_power_cap",
    "throttle_sw_thermal",
    "throttle_hw",
    "throttle_hw_thermal",
    "throttle_hw_brake",
    "sm_clock",
    "sm_clock_p5",
    "link_bytes",
)
"""Those that need telemetry."""

NO_TOKENS = "tokens per step are not known"
ONLY_TRACED = "only a step under the profiler tells"
NO_TRACE_ON_CPU = "not measured on a CPU: no trace tells there whether a thread computes or waits for gloo"


def missing(metric: str, reason: str) -> Value:
    return Value(value=None, unit=METRICS[metric].unit, reason=reason)


def rank_values(launch: Launch, machine: Machine) -> dict[str, Value]:
    """What the ranks reported. They must have passed `steps.unusable`."""
    reports = launch.ranks
    step_time_s = statistics.median(steps.slowest_steps_s(reports))
    tokens = reports[0].tokens_per_step
    tokens_per_s = None if tokens is None else tokens / step_time_s / len(reports)
    only_cpu = "only on a CPU"
    no_tokens = missing("throughput", NO_TOKENS)
    return {
        "throughput": _measured("throughput", tokens_per_s) if tokens_per_s is not None else no_tokens,
        "step_time": _measured("step_time", step_time_s),
        "step_cpu_time": _step_cpu_time(launch, machine),
        "cost_cpu": steps.cost_cpu(reports) if machine.is_cpu else missing("cost_cpu", only_cpu),
        "cost_wall": steps.cost_wall(reports) if machine.is_cpu else missing("cost_wall", only_cpu),
        "busyness": steps.busyness(reports) if machine.is_cpu else missing("busyness", only_cpu),
        "peak_memory": missing("peak_memory", "not measured on a CPU") if machine.is_cpu else _peak_memory(reports),
        "compile_time": _compile_time(launch),
        "mfu": _mfu(launch.scenario, machine, tokens_per_s),
        **{metric: calibration_time(reports, metric) for metric in CALIBRATIONS},
        **{metric: missing(metric, NO_TRACE_ON_CPU if machine.is_cpu else ONLY_TRACED) for metric in TRACED_METRICS},
    }


def device_values(
    windows: Sequence[DeviceWindow], energies: Mapping[str, Value], launch: Launch, is_cpu: bool
) -> dict[str, Value]:
    """What the sensors say. `energies` holds joules of each window by UUID."""

    def worst(value_of: Callable[[DeviceWindow], Value]) -> Value:
        return over_devices(windows, value_of, max)

    core = _CORE_TEMPERATURE[is_cpu]
    return {
        "energy_per_token": _energy_per_token(windows, energies, launch, is_cpu),
        "mean_power": over_devices(windows, lambda w: _mean_power(energies[w.uuid], w.duration_s), statistics.fmean),
        "peak_power": worst(power.peak_power),
        "peak_power_max": worst(power.highest_power),
        "power_burstiness": worst(power.burstiness),
        "core_temp_end": worst(lambda window: thermal.temperature_end(window, core)),
        "hbm_temp_end": worst(lambda window: thermal.temperature_end(window, "hbm_temp_c")),
        "core_temp_p95": worst(lambda window: thermal.temperature_p95(window, core)),
        "hbm_temp_p95": worst(lambda window: thermal.temperature_p95(window, "hbm_temp_c")),
        "core_temp_spread": _spread(windows, core),
        "core_temp_slope": worst(lambda window: thermal.slope(window, core)),
        "core_temp_steady": worst(thermal.temperature_steady),
        "heating": worst(lambda window: thermal.heating(window, energies[window.uuid])),
        "thermal_resistance": worst(thermal.thermal_resistance),
        "margin_min": over_devices(windows, thermal.margin_min, min),
        "throttle_power_cap": worst(lambda window: power.throttle_share(window, "throttle_power_cap_ns")),
        "throttle_sw_thermal": worst(lambda window: power.throttle_share(window, "throttle_sw_thermal_ns")),
        "throttle_hw": worst(
            lambda window: power.throttle_share(window, "throttle_hw_thermal_ns", "throttle_hw_brake_ns")
        ),
        "throttle_hw_thermal": worst(lambda window: power.throttle_share(window, "throttle_hw_thermal_ns")),
        "throttle_hw_brake": worst(lambda window: power.throttle_share(window, "throttle_hw_brake_ns")),
        "sm_clock": over_devices(windows, power.sm_clock, statistics.fmean),
        "sm_clock_p5": over_devices(windows, power.sm_clock_p5, min),
        "link_bytes": _link_bytes(windows, launch),
    }


def _spread(windows: Sequence[DeviceWindow], quantity: str) -> Value:
    """Degrees between the hottest and the coolest device of the node at the end of the window."""
    if len(windows) < 2:
        return missing("core_temp_spread", "one device")
    return over_devices(windows, lambda window: thermal.temperature_end(window, quantity), lambda c: max(c) - min(c))


def _link_bytes(windows: Sequence[DeviceWindow], launch: Launch) -> Value:
    """Mean over devices; one that is alone has nobody to send to. Of a sweep, which has no steps, all that it sent."""
    if len(windows) < 2:
        return missing("link_bytes", "one device")
    if isinstance(launch.scenario.work, Collective):
        return over_devices(windows, links.sweep_bytes, statistics.fmean)
    count = len(steps.slowest_steps_s(launch.ranks))
    return over_devices(windows, lambda window: links.link_bytes(window, count), statistics.fmean)


def _energy_per_token(
    windows: Sequence[DeviceWindow], energies: Mapping[str, Value], launch: Launch, is_cpu: bool
) -> Value:
    """Joules of all devices over the tokens of exactly the steps in the window. Idle power is not taken off."""
    if is_cpu:
        return missing("energy_per_token", "the window of a CPU holds calibration as well as steps")
    tokens_per_step = launch.ranks[0].tokens_per_step
    if tokens_per_step is None:
        return missing("energy_per_token", NO_TOKENS)
    tokens = tokens_per_step * len(steps.slowest_steps_s(launch.ranks))
    joules = over_devices(windows, lambda window: energies[window.uuid], sum)
    return _of(joules, "energy_per_token", None if joules.value is None else joules.value / tokens)


def _mean_power(joules: Value, duration_s: float) -> Value:
    return _of(joules, "mean_power", None if joules.value is None else joules.value / duration_s)


def _peak_memory(reports: Sequence[RankReport]) -> Value:
    peaks = [report.peak_memory_bytes for report in reports]
    silent = [report.rank for report in reports if report.peak_memory_bytes is None]
    if silent:
        return missing("peak_memory", f"rank {silent[0]} reports none")
    return _measured("peak_memory", float(max(peak for peak in peaks if peak is not None)))


def _compile_time(launch: Launch) -> Value:
    """The slowest rank's, and only where the compiler had nothing to reuse."""
    reports = launch.ranks
    if isinstance(launch.scenario.work, Script):
        return missing("compile_time", "a script does not tell whether it compiles")
    if any(report.compile_cache_cold is None for report in reports):
        return missing("compile_time", "not compiled")
    if not all(report.compile_cache_cold for report in reports):
        return missing("compile_time", "warm compiler cache")
    times_s = [report.phases.compile_s for report in reports if report.phases.compile_s is not None]
    if len(times_s) < len(reports):
        return missing("compile_time", "not reported by every rank")
    return _measured("compile_time", max(times_s))


def _step_cpu_time(launch: Launch, machine: Machine) -> Value:
    """Median over the steps of a rank's CPU time, mean over ranks; of a script, which has no calibration beside it."""
    if not machine.is_cpu or not isinstance(launch.scenario.work, Script):
        return missing("step_cpu_time", "only of a script on a CPU")
    series = [report.steps.cpu_s for report in launch.ranks if report.steps is not None]
    if not all(series):
        return missing("step_cpu_time", "a log does not tell CPU time")
    return _measured("step_cpu_time", statistics.fmean(statistics.median(cpu_s) for cpu_s in series))


def _mfu(scenario: Scenario, machine: Machine, tokens_per_s: float | None) -> Value:
    """Model FLOP/s of one GPU over its dense bf16 peak, by the formula `FLOP_FORMULA`."""
    if isinstance(scenario.work, Script) or tokens_per_s is None:
        return missing("mfu", "FLOPs of a script are not known")
    if scenario.options.precision is Precision.FP8:
        return missing("mfu", "an fp8 step has products in fp8 and in bf16, whose peaks differ")
    if scenario.options.precision is not Precision.BF16:
        return missing("mfu", f"no {scenario.options.precision} peak in the catalogue")
    hardware = CATALOGUE.get(machine.variant)
    if hardware is None or hardware.peak_bf16_flops is None:
        return missing("mfu", f"no peak of {machine.variant} in the catalogue")
    return _measured("mfu", tokens_per_s * flops_per_token(scenario, FLOP_FORMULA) / hardware.peak_bf16_flops)


def _measured(metric: str, value: float) -> Value:
    return Value(value=value, unit=METRICS[metric].unit, coverage=1.0)


def _of(evidence: Value, metric: str, value: float | None) -> Value:
    """A value derived from another: coverage, source and reason go with it."""
    return msgspec.structs.replace(evidence, value=value, unit=METRICS[metric].unit)
