"""The metric table: id, unit, which direction is better, how it is printed. Everything that is judged is in here."""

from __future__ import annotations

from enum import StrEnum

from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.records.base import Record
from pytest_charllm.records.curve import bus_bandwidth, latency
from pytest_charllm.scenario.collective import SIZES, label


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"
    """Two-sided: any move beyond tolerance counts."""


class Metric(Record, frozen=True, kw_only=True):
    """`relative`: changes are compared as ratios; otherwise as differences in `unit`."""

    id: str
    unit: str
    better: Better
    title: str
    relative: bool = True


TRACED_METRICS = ("compute_time", "communication_time", "exposed_communication", "host_gap")
"""Of a step under the profiler."""

METRICS: dict[str, Metric] = {
    metric.id: metric
    for metric in (
        Metric(id="throughput", unit="tokens/s/GPU", better=Better.HIGHER, title="tokens/s/GPU"),
        Metric(id="step_time", unit="s", better=Better.LOWER, title="step"),
        Metric(id="step_cpu_time", unit="s", better=Better.LOWER, title="CPU/step"),
        Metric(id="cost_cpu", unit="x calibration", better=Better.LOWER, title="Gate A"),
        Metric(id="cost_wall", unit="x decoder", better=Better.LOWER, title="Gate B"),
        Metric(id="busyness", unit="wall/CPU", better=Better.NEITHER, title="wall/CPU", relative=False),
        Metric(id="energy_per_token", unit="J/token", better=Better.LOWER, title="J/token"),
        Metric(id="mean_power", unit="W", better=Better.NEITHER, title="W"),
        Metric(id="peak_power", unit="W", better=Better.LOWER, title="peak W"),
        Metric(id="peak_power_max", unit="W", better=Better.LOWER, title="max W"),
        Metric(id="power_burstiness", unit="share", better=Better.LOWER, title="bursts", relative=False),
        Metric(id="core_temp_end", unit="degC", better=Better.LOWER, title="core degC", relative=False),
        Metric(id="hbm_temp_end", unit="degC", better=Better.LOWER, title="HBM degC", relative=False),
        Metric(id="core_temp_p95", unit="degC", better=Better.LOWER, title="core p95", relative=False),
        Metric(id="hbm_temp_p95", unit="degC", better=Better.LOWER, title="HBM p95", relative=False),
        Metric(id="core_temp_spread", unit="degC", better=Better.LOWER, title="core spread", relative=False),
        Metric(id="core_temp_slope", unit="degC/min", better=Better.NEITHER, title="core degC/min", relative=False),
        Metric(id="core_temp_steady", unit="degC", better=Better.LOWER, title="steady core", relative=False),
        Metric(id="heating", unit="degC/W", better=Better.LOWER, title="degC/W"),
        Metric(id="thermal_resistance", unit="degC/W", better=Better.LOWER, title="steady degC/W"),
        Metric(id="margin_min", unit="degC", better=Better.HIGHER, title="margin", relative=False),
        Metric(id="throttle_power_cap", unit="share", better=Better.NEITHER, title="power cap", relative=False),
        Metric(id="throttle_sw_thermal", unit="share", better=Better.LOWER, title="SW thermal", relative=False),
        Metric(id="throttle_hw", unit="share", better=Better.LOWER, title="HW slowdown", relative=False),
        Metric(id="throttle_hw_thermal", unit="share", better=Better.LOWER, title="HW thermal", relative=False),
        Metric(id="throttle_hw_brake", unit="share", better=Better.LOWER, title="HW brake", relative=False),
        Metric(id="sm_clock", unit="MHz", better=Better.NEITHER, title="SM MHz"),
        Metric(id="sm_clock_p5", unit="MHz", better=Better.NEITHER, title="SM p5"),
        Metric(id="link_bytes", unit="bytes", better=Better.NEITHER, title="link bytes"),
        Metric(id="peak_memory", unit="bytes", better=Better.LOWER, title="memory"),
        Metric(id="compile_time", unit="s", better=Better.LOWER, title="compile"),
        Metric(id="matmul_time", unit="s", better=Better.LOWER, title="matmul"),
        Metric(id="copy_time", unit="s", better=Better.LOWER, title="copy"),
        Metric(id="all_reduce_time", unit="s", better=Better.LOWER, title="all-reduce"),
        Metric(id="compute_time", unit="s", better=Better.LOWER, title="compute", relative=False),
        Metric(id="communication_time", unit="s", better=Better.LOWER, title="communication", relative=False),
        Metric(id="exposed_communication", unit="s", better=Better.LOWER, title="exposed", relative=False),
        Metric(id="host_gap", unit="s", better=Better.LOWER, title="host gap", relative=False),
        Metric(id="mfu", unit="share", better=Better.HIGHER, title="MFU"),
        *(Metric(id=latency(size), unit="s", better=Better.LOWER, title=f"{label(size)} latency") for size in SIZES),
        *(
            Metric(id=bus_bandwidth(size), unit="GB/s", better=Better.HIGHER, title=f"{label(size)} GB/s")
            for size in SIZES
        ),
    )
}

_BY_NAME = {
    name: metric.id for metric in METRICS.values() for name in (metric.title, metric.id.replace("_", " "), metric.id)
}


def metric_named(name: str) -> str:
    """The id of a metric by any name that is printed: its id, its title over a column (``W``), its words in a line.

    Raises `BadInput` for a name that no metric has.
    """
    if name not in _BY_NAME:
        known = "as tables print it, or its id in pytest_charllm.records.METRICS, such as throughput or mean_power"
        raise BadInput(f"metric {name!r} is not known; {did_you_mean(name, _BY_NAME)}write it {known}")
    return _BY_NAME[name]
