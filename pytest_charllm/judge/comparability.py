"""What must be equal here and on record before two numbers may be compared."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.hardware import Machine
from pytest_charllm.records import MEASURING, Comparable, Measurement, WindowRule
from pytest_charllm.scenario.flops import FLOP_FORMULA

SIZES = ("parameters", "FLOPs/token", "tokens/step")
"""Parts of the workload without which two speeds are of different work. Kernels that answered are not among them: work
that fell back to slower ones did become slower, and the diagnosis says by what."""


def comparable_of(
    machine: Machine,
    window: WindowRule,
    measurements: Sequence[Measurement] = (),
) -> Comparable:
    """What these measurements may be compared with. Before the first of them, what is known of the machine alone."""
    limits_w = [m.power_limit_w for m in measurements if m.power_limit_w is not None]
    limits_w = limits_w or [d.power_limit_w for d in machine.devices if d.power_limit_w is not None]
    partitions = sorted({device.partition for device in machine.devices if device.partition is not None})
    semantics: dict[str, str] = {}
    units: dict[str, str] = {}
    workload: dict[str, str] = {}
    for measurement in measurements:
        semantics |= measurement.semantics
        workload |= {part: text for part, text in measurement.workload.items() if part in SIZES}
        units |= {metric: value.unit for metric, value in measurement.values.items() if value.value is not None}
    return Comparable(
        variant=machine.variant,
        shape=machine.shape,
        # A synchronous step waits for the GPU with the least power, so the lowest limit is the machine's.
        power_limit_w=min(limits_w, default=None),
        partition=" and ".join(partitions) or None,
        cpu_model=machine.cpu_model if machine.is_cpu else None,
        semantics=semantics,
        units=units,
        workload=workload,
        flop_formula=measurements[0].flop_formula if measurements else FLOP_FORMULA,
        window=f"{window.tier} {window.min_steps} steps {window.min_seconds:g} s",
        measuring=MEASURING,
    )
