"""The same facts for machines: what goes into JUnit properties and into pytest-benchmark's extra info."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from pytest_charllm.records import METRICS
from pytest_charllm.report.case import Case


def properties(case: Case) -> dict[str, Any]:
    """JSON-able through and through: a number that is not finite is None, like any other that is missing.

    `values` holds one entry a launch for every metric, in `units`.
    """
    judgement = case.judgement
    metrics = [metric for metric in METRICS if any(metric in m.values for m in case.measurements)]
    document = {
        "scenario": case.key,
        "verdict": str(case.verdict),
        "because": case.because,
        "launches": len(case.measurements),
        "confirmed": judgement.confirmed if judgement else False,
        "metrics": {row.metric: _without(row, "metric") for row in (judgement.metrics if judgement else ())},
        "checks": {check.name: _without(check, "name") for check in (judgement.checks if judgement else ())},
        "diagnosis": [diagnosis.text for diagnosis in (judgement.diagnosis if judgement else ())],
        "findings": [f"{finding.kind}: {finding.text}" for finding in (judgement.findings if judgement else ())],
        "stack_diff": [list(part) for part in (judgement.stack_diff if judgement else ())],
        "values": {metric: [m.number(metric) for m in case.measurements] for metric in metrics},
        "units": {metric: METRICS[metric].unit for metric in metrics},
        "devices": sorted({uuid for m in case.measurements for uuid in m.device_uuids}),
        "stack": _stack(case),
        "injected": [dict(zip(("name", "requested", "achieved"), fault, strict=True)) for fault in case.faults],
    }
    return _finite(document)


def _stack(case: Case) -> dict[str, str]:
    if not case.measurements:
        return {}
    parts = msgspec.to_builtins(case.measurements[-1].stack)
    return {part: version for part, version in parts.items() if version is not None}


def _without(record: msgspec.Struct, field: str) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(record).items() if name != field}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
