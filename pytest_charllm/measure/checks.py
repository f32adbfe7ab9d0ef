"""The strict checks of launches that are not timed: true on every machine, so they need no baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from pytest_charllm.errors import BadInput
from pytest_charllm.records import Check, Collective, Finding, Launch, Pass, RankReport
from pytest_charllm.scenario import Precision, Scenario
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.models import trainable_parameters
from pytest_charllm.scenario.traffic import Predicted, collectives, compiled_reductions

LOSS_LIMIT = {Precision.FP32: 1e-6, Precision.BF16: 5e-4, Precision.FP8: 5e-3}
"""Relative. Measured on two to four ranks: 6e-8 in fp32, 5e-5 in bf16; a wrong reduction is off by percents. That of
fp8 is for the rounding of its three bits of mantissa; measured on two H200s: 2.4e-4."""
GRAD_NORM_LIMIT = {Precision.FP32: 1e-5, Precision.BF16: 2e-2, Precision.FP8: 1e-1}
"""Relative. Measured: 9e-8 in fp32, 3.5e-3 in bf16, 5.6e-3 in fp8. Sharper than the loss, from which AdamW hides a
wrong scale."""
SINGLE_PRECISION_NORM_LIMIT = 3e-5
"""Of an engine that adds up the squares in single precision, as DeepSpeed does: a sum of a million of them errs by up
to their root times its last digit, 1000 x 6e-8, half of which goes into the norm. Measured: 9e-6."""


def checks(launch: Launch) -> tuple[Check, ...]:
    """Of a diagnostic launch: parity with one process, and `counts`. Missing evidence fails a check."""
    reports, scenario = launch.ranks, launch.scenario
    precision = scenario.options.precision
    reference = next((report.reference for report in reports if report.reference is not None), None)
    return (
        _parity(
            "loss parity",
            reference.losses if reference is not None else (),
            {report.rank: report.losses for report in reports},
            LOSS_LIMIT[precision],
        ),
        _parity(
            "gradient norm parity",
            reference.grad_norms if reference is not None else (),
            {report.rank: report.grad_norms for report in reports},
            _norm_limit(scenario),
        ),
        *counts(launch),
    )


def counts(launch: Launch) -> tuple[Check, ...]:
    """Parameters, FLOPs and collectives are what is on paper: a step that is faster for doing less fails them."""
    reports, scenario = launch.ranks, launch.scenario
    return (
        _equal("parameters", trainable_parameters(scenario), {report.rank: report.parameters for report in reports}),
        *_flops(reports, scenario),
        *_traffic(launch),
    )


def _norm_limit(scenario: Scenario) -> float:
    limit = GRAD_NORM_LIMIT[scenario.options.precision]
    return max(limit, SINGLE_PRECISION_NORM_LIMIT) if scenario.engine == "deepspeed" else limit


def unchecked(scenario: Scenario) -> tuple[Finding, ...]:
    """What there is no prediction to check against."""
    found = []
    for what, predict in (("FLOPs", hardware_flops_per_step), ("collectives", collectives)):
        try:
            predict(scenario)
        except BadInput as error:
            found.append(Finding(kind="unchecked", text=f"{what} are not checked: {error}"))
    return tuple(found)


def _parity(name: str, expected: Sequence[float], observed: Mapping[int, Sequence[float]], limit: float) -> Check:
    """Every rank's series against the reference's, judged by the step and rank furthest apart."""
    if not expected:
        return Check(name=name, ok=False, expected="a reference", observed="none was reported", limit=limit)
    worst, told = -1.0, ("", "", "")
    for rank, series in observed.items():
        for step, (want, got) in enumerate(zip_longest(expected, series), start=1):
            gap = _relative_gap(want, got)
            if gap > worst:
                where = f"step {step} of {len(expected)} on rank {rank}, {gap:.1e} apart"
                worst, told = gap, (_number(want), _number(got), where)
    return Check(name=name, ok=0 <= worst <= limit, expected=told[0], observed=told[1], limit=limit, detail=told[2])


def _equal(name: str, expected: int, observed: Mapping[int, int | None]) -> Check:
    wrong = {rank: number for rank, number in observed.items() if number != expected}
    rank = min(wrong, default=None)
    shown = expected if rank is None else wrong[rank]
    return Check(
        name=name,
        ok=not wrong and bool(observed),
        expected=f"{expected:,}",
        observed="not reported" if shown is None or not observed else f"{shown:,}",
        detail="" if rank is None else f"on rank {rank}{_ratio(expected, wrong[rank])}",
    )


def _flops(reports: Sequence[RankReport], scenario: Scenario) -> tuple[Check, ...]:
    """Those of the attention that ran: which one that should be is no matter of counts."""
    try:
        expected = hardware_flops_per_step(scenario, reports[0].attention_backend)
    except BadInput:
        return ()
    return (_equal("FLOPs", expected, {report.rank: report.flops_per_step for report in reports}),)


def _traffic(launch: Launch) -> tuple[Check, ...]:
    """Count and bytes a step of every operation on every axis, on every rank."""
    reports, scenario = launch.ranks, launch.scenario
    try:
        predicted = {report.rank: collectives(scenario, report.rank) for report in reports}
    except BadInput:
        return ()
    seen = {report.rank: report.collectives for report in reports}
    counted = _by_call(seen, "count")
    if launch.pass_ is Pass.TRACED:
        counted = {rank: _as_if_uncompiled(scenario, rank, table, predicted[rank]) for rank, table in counted.items()}
    return (
        _tables("collective count", _by_call(predicted, "count"), counted),
        _tables("collective bytes", *(_by_call(rows, "bytes") for rows in (predicted, seen))),
    )


def _as_if_uncompiled(
    scenario: Scenario, rank: int, counted: dict[tuple[str, str], int], predicted: Sequence[Predicted]
) -> dict[tuple[str, str], int]:
    """The traced pass counts a step of a model that trained compiled, with the buckets which DDP has made of that: as
    many as it may make are as good as those predicted."""
    allowed, reductions = compiled_reductions(scenario, rank), ("all-reduce", "dp")
    if allowed is None or counted.get(reductions, 0) not in allowed:
        return counted
    return counted | {reductions: next(row.count for row in predicted if (row.op, row.axis) == reductions)}


def _by_call(rows: Mapping[int, Sequence[Predicted | Collective]], field: str) -> dict[int, dict[tuple[str, str], int]]:
    """rank -> (operation, axis) -> the field."""
    return {rank: {(row.op, row.axis): getattr(row, field) for row in each} for rank, each in rows.items()}


def _tables(
    name: str,
    expected: Mapping[int, Mapping[tuple[str, str], int]],
    observed: Mapping[int, Mapping[tuple[str, str], int]],
) -> Check:
    """Equality of whole tables on every rank; the entry furthest off is the one that is told."""
    entries = [
        (abs(seen.get(key, 0) - expected[rank].get(key, 0)), rank, key)
        for rank, seen in observed.items()
        for key in {*expected[rank], *seen}
    ]
    gap, rank, key = max(entries, default=(0, 0, ("", "")), key=lambda entry: (entry[0], -entry[1], entry[2]))
    if not gap:
        total = f"{sum(expected[min(expected)].values()):,}" if expected else "a report"
        return Check(name=name, ok=bool(observed), expected=total, observed=total if observed else "not reported")
    want, got = expected[rank].get(key, 0), observed[rank].get(key, 0)
    return Check(
        name=name,
        ok=False,
        expected=f"{want:,}",
        observed=f"{got:,}",
        detail=f"{key[0]} on {key[1]}, rank {rank}{_ratio(want, got)}",
    )


def _relative_gap(want: float | None, got: float | None) -> float:
    if want is None or got is None:
        return math.inf
    if want == got:
        return 0.0
    return abs(got - want) / abs(want) if want else math.inf


def _ratio(expected: int, observed: int | None) -> str:
    return f", {100 * (observed / expected - 1):+.2f} %" if expected and observed is not None else ""


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
