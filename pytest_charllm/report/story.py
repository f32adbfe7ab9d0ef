"""The whole story of one scenario that did not simply pass: what a good engineer would write into the ticket."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pytest_charllm.hardware import Machine
from pytest_charllm.judge.wording import moved, width
from pytest_charllm.records import METRICS, Check, Finding, MetricVerdict, Validity, Verdict
from pytest_charllm.report.case import PRIMARY, Case
from pytest_charllm.report.line import injected
from pytest_charllm.report.numbers import value
from pytest_charllm.report.text import WIDTH, grid, pairs, section, verbatim
from pytest_charllm.store.paths import shown

DETAIL_LINES = 60
LOG_LINES = 20
VERDICT_WIDTH = 42
TOLD_BY_ITS_LINE = "environment"
"""What this machine lacks: its one line says what to do, and no traceback of ours adds to it."""
MOVED = (Verdict.REGRESSION, Verdict.IMPROVED)


def story(case: Case, *, machine: Machine, rerun: str, folder: Path | None = None, repro: Path | None = None) -> str:
    """Verdict, numbers, what changed, first cause, where everything lies, and the line that reruns just this.

    `folder` is the launch to look at first, `repro` its bundle. At most `WIDTH` columns wide, but for paths and
    `rerun`, which are there to be copied.
    """
    sections = [
        _head(case, machine),
        section("diagnosis", _diagnosis(case)),
        _first_cause(case),
        _log(case),
        section("metrics", _metrics(case)),
        section("not judged", _not_judged(case)),
        section("checks", _checks(case)),
        _stack(case),
        section("findings", pairs([(finding.kind, finding.text) for finding in _findings(case)])),
        section("launches", _launches(case)),
        section("where", _where(case, folder, repro)),
        section("run just this", rerun),
    ]
    return "\n\n".join(text for text in sections if text)


def _head(case: Case, machine: Machine) -> str:
    hardware = f"{machine.variant} {machine.shape}" + (f" ({machine.cpu_model})" if machine.cpu_model else "")
    lines = [f"{case.verdict} {case.key} on {hardware}", *textwrap.wrap(case.because, WIDTH)]
    faults = injected(case)
    if faults:
        lines.append(f"injected {faults}")
    return "\n".join(lines)


def _diagnosis(case: Case) -> str:
    lines = case.judgement.diagnosis if case.judgement else ()
    return "\n".join(textwrap.fill(each.text, WIDTH - 2, subsequent_indent="  ") for each in lines)


def _first_cause(case: Case) -> str:
    if case.failed is None or case.failed.failure is None:
        return ""
    failure = case.failed.failure
    rank = "" if failure.rank is None else f" on rank {failure.rank}"
    body = "\n".join(textwrap.wrap(failure.summary, WIDTH - 4)) if failure.summary != case.because else ""
    detail = verbatim(failure.detail, DETAIL_LINES) if failure.kind != TOLD_BY_ITS_LINE else ""
    title = f"first cause: {failure.kind}{rank}, launch {case.failed.id}"
    return section(title, "\n".join(part for part in (body, detail) if part)) or title


def _log(case: Case) -> str:
    if case.failed is None or case.failed.failure is None:
        return ""
    failure = case.failed.failure
    if failure.kind == TOLD_BY_ITS_LINE:
        return ""
    whose = "the launch" if failure.rank is None else f"rank {failure.rank}"
    return section(f"log of {whose}, last lines", verbatim(failure.log_tail, LOG_LINES))


def _metrics(case: Case) -> str:
    rows = [row for row in (case.judgement.metrics if case.judgement else ()) if row.verdict is not Verdict.NOT_JUDGED]
    if not rows:
        return ""
    headers = ("metric", "here", "on record", "change", "tolerance", "would have seen", "verdict")
    ordered = sorted(rows, key=lambda row: row.verdict not in MOVED)
    return grid(headers, [_metric(row) for row in ordered], headers[1:-1], last_width=VERDICT_WIDTH)


def _metric(row: MetricVerdict) -> tuple[str, ...]:
    return (
        METRICS[row.metric].title,
        value(row.metric, row.value),
        value(row.metric, row.reference),
        "" if row.change is None else moved(row.metric, row.change),
        "" if row.tolerance is None else width(row.metric, row.tolerance),
        "" if row.would_have_seen is None else width(row.metric, row.would_have_seen),
        f"{row.verdict}: {row.reason}" if row.reason else str(row.verdict),
    )


def _not_judged(case: Case) -> str:
    """A line a reason, with the values of what was measured all the same."""
    told: dict[str, list[str]] = {}
    for row in case.judgement.metrics if case.judgement else ():
        if row.verdict is Verdict.NOT_JUDGED:
            text = f"{METRICS[row.metric].title} {value(row.metric, row.value)}".rstrip()
            told.setdefault(row.reason.removeprefix("not judged: "), []).append(text)
    lines = [f"{', '.join(texts)}: {reason}" for reason, texts in told.items()]
    return "\n".join(textwrap.fill(text, WIDTH - 2, subsequent_indent="  ") for text in lines)


def _checks(case: Case) -> str:
    checks = case.judgement.checks if case.judgement else ()
    failed = [(f"{check.name} FAILED", _failed_check(check)) for check in checks if not check.ok]
    passed = [check.name for check in checks if check.ok]
    return pairs([*failed, ("passed", ", ".join(passed))] if passed else failed)


def _failed_check(check: Check) -> str:
    limit = f"relative limit {check.limit:g}" if check.limit else "must be equal"
    text = f"expected {check.expected}, observed {check.observed} ({limit})"
    return f"{text}; {check.detail}" if check.detail else text


def _stack(case: Case) -> str:
    if case.judgement is None or not any(row.reference is not None for row in case.judgement.metrics):
        return ""
    diff = case.judgement.stack_diff
    if not diff:
        return "stack\n  the same software as on record" if case.verdict in MOVED else ""
    rows = [(part, recorded or "none", here or "none") for part, recorded, here in diff]
    return section("stack", grid(("part", "on record", "here"), rows))


def _findings(case: Case) -> list[Finding]:
    """Those of the judgement; without one, the launches' own, each said once."""
    if case.judgement is not None:
        return list(case.judgement.findings)
    found = {(f.kind, f.text): f for measurement in case.measurements for f in measurement.findings}
    return list(found.values())


def _launches(case: Case) -> str:
    """One line a launch with what spoke, so that the spread is seen beside the verdict."""
    if not case.measurements:
        return ""
    spoke = [row.metric for row in case.spoke] or [m for m in PRIMARY if case.value(m) is not None][-1:]
    metrics = spoke[:4]
    headers = ("launch", "started", *(METRICS[metric].title for metric in metrics), "devices", "validity")
    rows = [
        (
            measurement.launch_id.removeprefix(f"{case.key}."),
            measurement.started,
            *(value(metric, measurement.number(metric)) for metric in metrics),
            _devices(measurement.device_uuids),
            "" if measurement.validity is Validity.VALID else f"{measurement.validity}: {measurement.reason or ''}",
        )
        for measurement in case.measurements
    ]
    return grid(headers, rows, headers[2:-2])


def _devices(uuids: tuple[str, ...]) -> str:
    return f"{uuids[0]} and {len(uuids) - 1} more" if len(uuids) > 1 else "".join(uuids)


def _where(case: Case, folder: Path | None, repro: Path | None) -> str:
    log = case.failed.failure.log_path if case.failed is not None and case.failed.failure is not None else None
    lines = [("launch", folder), ("log", None if log is None else Path(log)), ("repro", repro)]
    return "\n".join(f"{label:<8}{shown(path)}" for label, path in lines if path is not None)
