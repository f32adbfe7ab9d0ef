"""One launch reduced to one value per metric, each with its evidence or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.hardware import Machine
from pytest_charllm.measure.checks import checks, counts, unchecked
from pytest_charllm.measure.collective import curve, curve_metrics, result_checks, unequal
from pytest_charllm.measure.energy import energy
from pytest_charllm.measure.health import health
from pytest_charllm.measure.links import link_findings
from pytest_charllm.measure.observations import launch_findings, power_capped, step_parts
from pytest_charllm.measure.ranks import Columns, per_rank
from pytest_charllm.measure.script import NO_WINDOW, script_findings, semantics, windowed
from pytest_charllm.measure.steps import step_findings, unusable
from pytest_charllm.measure.thermal import temperature_start
from pytest_charllm.measure.traced import traced_findings, traced_per_rank, traced_values
from pytest_charllm.measure.values import DEVICE_METRICS, device_values, missing, rank_values
from pytest_charllm.measure.windows import DeviceWindow, device_windows
from pytest_charllm.measure.workload import workload
from pytest_charllm.records import METRICS, Check, Finding, Launch, Measurement, Pass, Status, Trace, Validity, Value
from pytest_charllm.records.curve import CURVE_METRICS
from pytest_charllm.scenario import Collective, Scenario, Script
from pytest_charllm.scenario.flops import FLOP_FORMULA


def measure(launch: Launch, trace: Trace | None, machine: Machine) -> Measurement:
    """Reduce one launch. Every metric of its work has a value or a reason; what is missing is never a number.

    A diagnostic launch gives checks and no times, a traced one the parts of a step and the checks of what it counted.
    One that must not be judged is INVALID with its reason: it did not complete, its ranks do not fit together, or a
    device was lost or used by somebody else meanwhile.
    """
    launch, reason = _whole(launch)
    is_script = isinstance(launch.scenario.work, Script)
    findings = launch_findings(launch)
    untimed = reason or f"the {launch.pass_} pass contributes no step time"
    values = {metric: missing(metric, untimed) for metric in _metrics(launch.scenario)}
    columns: Columns = {}
    windows: tuple[DeviceWindow, ...] = ()
    taints: list[Finding] = []
    if reason is None and launch.pass_ is Pass.TIMED:
        windows, absent = device_windows(launch, trace, machine.is_cpu)
        if is_script and launch.ranks[0].window is None:
            absent = NO_WINDOW
        measured, taints = _values(launch, machine, windows, absent)
        values |= measured
        state = health(launch, trace, windows)
        reason, taints = state.refused, [*taints, *state.taints]
        stepped = not isinstance(launch.scenario.work, Collective)
        findings += [*(step_findings(launch.ranks, machine.is_cpu) if stepped else ()), *taints]
        findings += power_capped(windows, values["mean_power"].value)
        findings += link_findings(launch, values["link_bytes"], machine.gpus_per_node)
        findings += state.notes
        findings += script_findings(launch) if is_script else []
    elif reason is None and launch.pass_ is Pass.TRACED:
        values |= traced_values(launch)
        findings += traced_findings(launch)
        columns |= traced_per_rank(launch)
        findings += unchecked(launch.scenario) if _is_counted(launch) else ()
    elif reason is None:
        findings += [*unchecked(launch.scenario), *step_parts(launch)]
    if reason is not None:
        validity = Validity.INVALID
    else:
        validity = Validity.TAINTED if taints else Validity.VALID
        reason = "; ".join(finding.text for finding in taints) or None
    timed = launch.pass_ is Pass.TIMED and validity is not Validity.INVALID
    return Measurement(
        launch_id=launch.id,
        scenario_key=launch.scenario.key,
        started=launch.started,
        stack=launch.stack,
        device_uuids=_uuids(launch, machine),
        values=values,
        start_temp_c=_start_temperatures(windows),
        per_rank=per_rank(launch.ranks, windows, machine.is_cpu) if timed else columns,
        window_s=_window_s(launch) if timed else None,
        workload=workload(launch) if validity is not Validity.INVALID else {},
        semantics=_semantics(windows) | (semantics(launch) if is_script and reason is None else {}),
        flop_formula=FLOP_FORMULA,
        power_limit_w=min((w.line.power_limit_w for w in windows if w.line.power_limit_w is not None), default=None),
        window_tier=launch.window.tier,
        findings=tuple(findings),
        checks=strict_checks(launch) if validity is not Validity.INVALID else (),
        validity=validity,
        reason=reason,
        injected=bool(launch.faults),
        replayed=launch.replayed,
        simulated=launch.simulated or machine.simulated or _simulated(trace),
    )


def _metrics(scenario: Scenario) -> tuple[str, ...]:
    """What its work has: a step, or a curve; and what sensors say of either."""
    if isinstance(scenario.work, Collective):
        return (*curve_metrics(scenario), *DEVICE_METRICS)
    return tuple(metric for metric in METRICS if metric not in CURVE_METRICS)


def strict_checks(launch: Launch) -> tuple[Check, ...]:
    """Those of its pass and work, by the predictions of this version."""
    if isinstance(launch.scenario.work, Collective):
        return result_checks(launch)
    if launch.pass_ is Pass.TRACED:
        return counts(launch) if _is_counted(launch) else ()
    return checks(launch) if launch.pass_ is Pass.DIAGNOSTIC else ()


def _is_counted(launch: Launch) -> bool:
    return any(report.flops_per_step is not None for report in launch.ranks)


def _whole(launch: Launch) -> tuple[Launch, str | None]:
    """The launch, with its window where no rank could tell that alone, and why it may not be measured, or None."""
    if launch.status is not Status.COMPLETED:
        return launch, f"the launch ended {launch.status}" + (f": {launch.failure.summary}" if launch.failure else "")
    world = launch.scenario.layout.world
    if sorted(report.rank for report in launch.ranks) != list(range(world)):
        return launch, f"{len(launch.ranks)} of {world} ranks reported"
    if isinstance(launch.scenario.work, Script):
        placed = windowed(launch)
        if isinstance(placed, str):
            return launch, placed
        launch = placed
    if isinstance(launch.scenario.work, Collective):
        return launch, unequal(launch.ranks)
    return launch, unusable(launch.ranks) if launch.pass_ is Pass.TIMED else None


def _values(
    launch: Launch, machine: Machine, windows: Sequence[DeviceWindow], absent: str | None
) -> tuple[dict[str, Value], list[Finding]]:
    """All metrics, and where counter and integral of energy disagree but not too much."""
    values = curve(launch) if isinstance(launch.scenario.work, Collective) else rank_values(launch, machine)
    if absent is not None:
        return values | {metric: missing(metric, absent) for metric in DEVICE_METRICS}, []
    energies: dict[str, Value] = {}
    disagreements: list[Finding] = []
    for window in windows:
        energies[window.uuid], disagreement = energy(window)
        if disagreement is not None:
            disagreements.append(disagreement)
    return values | device_values(windows, energies, launch, machine.is_cpu), disagreements


def _uuids(launch: Launch, machine: Machine) -> tuple[str, ...]:
    """The GPUs of the launch in rank order; a CPU has none."""
    if machine.is_cpu:
        return ()
    return tuple(dict.fromkeys(report.device.uuid for report in launch.ranks if report.device.uuid is not None))


def _window_s(launch: Launch) -> float | None:
    edges = launch.ranks[0].window
    return None if edges is None else (edges.end_mono_ns - edges.begin_mono_ns) / 1e9


def _start_temperatures(windows: Sequence[DeviceWindow]) -> dict[str, float]:
    known = {window.uuid: temperature_start(window) for window in windows}
    return {uuid: temperature for uuid, temperature in known.items() if temperature is not None}


def _semantics(windows: Sequence[DeviceWindow]) -> dict[str, str]:
    """What each sensor means; several meanings on several devices are all named."""
    meanings: dict[str, set[str]] = {}
    for window in windows:
        for quantity, meaning in window.line.semantics.items():
            meanings.setdefault(quantity, set()).add(meaning)
        if window.line.capabilities.get("energy_j", "ok") != "ok" and "power_instant_w" in window.line.capabilities:
            # A sum over samples is another quantity than what a counter saw, and is not compared with it.
            meanings.setdefault("energy_j", set()).add("integral of power_instant_w")
    return {quantity: " / ".join(sorted(several)) for quantity, several in sorted(meanings.items())}


def _simulated(trace: Trace | None) -> bool:
    return trace is not None and trace.meta.source.partition(":")[0] == "simulated"
