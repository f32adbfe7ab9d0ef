"""The table at the end of a run: a line a scenario, and below it what asks for somebody's hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_charllm.judge.agreement import AGREEMENT_LAUNCHES
from pytest_charllm.records import Verdict
from pytest_charllm.report.case import Case
from pytest_charllm.report.line import injected, verdict, why
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import clipped, grid

WHY_WIDTH = 76
"""Wrapped here, and cut after two lines: the story has the rest."""

HEADERS = (
    "scenario",
    "verdict",
    "checks",
    "Gate A",
    "Gate B",
    "step",
    "tokens/s/GPU",
    "W",
    "J/token",
    "core/HBM degC",
    "why",
)
RIGHT = HEADERS[2:-1]

NOTICED = ("slow-rank", "link-traffic", "growing")
"""Findings that ask for somebody's hand: told below the table, but of scenarios that are red, whose story has them."""

ACCEPT = "pytest-charllm baseline accept latest"


def summary(cases: Sequence[Case], accept: str = ACCEPT) -> str:
    """One table of all scenarios and the lines below it; "" without any. Columns with no data anywhere are dropped.

    `accept`: the command that puts this run on record.
    """
    if not cases:
        return ""
    table = grid(HEADERS, [_row(case) for case in cases], RIGHT, last_width=WHY_WIDTH)
    return "\n".join([table, "", *_notes(cases, accept)])


def _row(case: Case) -> tuple[str, ...]:
    return (
        case.key,
        case.verdict,
        _checks(case),
        _gate(case, "cost_cpu"),
        _gate(case, "cost_wall"),
        value("step_time", case.value("step_time")) if _by_step_alone(case) else "",
        value("throughput", case.value("throughput")),
        value("mean_power", case.value("mean_power")),
        value("energy_per_token", case.value("energy_per_token")),
        _temperatures(case),
        clipped(why(case), 2 * WHY_WIDTH - 20),
    )


def _checks(case: Case) -> str:
    checks = case.judgement.checks if case.judgement else ()
    return f"{sum(check.ok for check in checks)} of {len(checks)}" if checks else ""


def _gate(case: Case, metric: str) -> str:
    judged = case.metric(metric)
    if judged is not None and judged.value is None:
        return "not judged"
    return value(metric, case.value(metric))


def _by_step_alone(case: Case) -> bool:
    """Of a script that says nothing of its tokens."""
    return case.value("throughput") is None and case.value("step_time") is not None


def _temperatures(case: Case) -> str:
    core, hbm = case.value("core_temp_end"), case.value("hbm_temp_end")
    if core is None and hbm is None:
        return ""
    return "/".join("-" if degrees is None else f"{degrees:.0f}" for degrees in (core, hbm))


def _notes(cases: Sequence[Case], accept: str) -> list[str]:
    counts = Counter(case.verdict for case in cases)
    scenarios = "1 scenario" if len(cases) == 1 else f"{len(cases)} scenarios"
    notes = [f"{scenarios}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())]
    notes += [
        f"noticed {case.key}: {finding.text}"
        for case in cases
        if case.judgement is not None and case.verdict != Verdict.REGRESSION
        for finding in case.judgement.findings
        if finding.kind in NOTICED
    ]
    faults = sorted({text for case in cases if (text := injected(case))})
    if faults:
        return [*notes, *(f"injected {text}: these launches can never become a baseline" for text in faults)]
    if any(measurement.replayed or measurement.simulated for case in cases for measurement in case.measurements):
        return [*notes, "replayed or simulated: these launches can never become a baseline"]
    improved = [case for case in cases if case.verdict == Verdict.IMPROVED]
    notes += [f"{verdict(case)}; put it on record: {accept} --only {case.key}" for case in improved]
    if alone := sum(_by_step_alone(case) for case in cases):
        how = "Script(tokens_per_step=...) or mark_step(tokens=...)"
        notes.append(f"{alone} judged by step time alone: tokens per step are not known; say them by {how}")
    return notes + _to_accept([case for case in cases if _wants_a_baseline(case)], accept)


def _to_accept(cases: Sequence[Case], accept: str) -> list[str]:
    """How to put on record what can go there; of all else why not, as `accept` would say."""
    why_not = Counter(case.not_recordable for case in cases)
    ready = why_not.pop("", 0)
    notes = [f"{ready} without a baseline; put these launches on record: {accept}"] if ready else []
    return notes + [f"{count} without a baseline, not to be put on record: {why}" for why, count in why_not.items()]


def _wants_a_baseline(case: Case) -> bool:
    """Nothing on record to hold it against, and launched to become that: on a CPU five times, to see them agree."""
    if case.verdict == Verdict.NO_BASELINE:
        return bool(case.measurements)
    nothing_recorded = case.judgement is not None and all(row.reference is None for row in case.judgement.metrics)
    return case.verdict == Verdict.PASS and nothing_recorded and len(case.measurements) >= AGREEMENT_LAUNCHES
