"""One-line texts: a change against the baseline with the power of the test, a verdict, what is running now."""

from __future__ import annotations

from pytest_charllm.judge.verdicts import line
from pytest_charllm.judge.wording import moved, name
from pytest_charllm.records import MetricVerdict, Verdict
from pytest_charllm.records.faults import describe_fault
from pytest_charllm.report.case import Case
from pytest_charllm.report.numbers import significant


def against_baseline(row: MetricVerdict) -> str:
    """``throughput +0.4 % (tolerance 1.5 %, would have seen 1.9 %)``, or the value and why it has no tolerance."""
    text = f"{name(row.metric)} {line(row)}".rstrip()
    return f"{text} ({row.reason})" if row.tolerance is None and row.reason else text


def why(case: Case) -> str:
    """What decided: the metrics that moved, furthest first, failed checks, and the cause; else how sharply the primary
    one looked.

    ``throughput -5.2 % (tolerance 1.5 %); energy per token +5.7 %; loss parity failed``
    """
    if case.judgement is None or case.verdict not in (Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSION):
        return case.because
    parts = [
        f"{name(row.metric)} {moved(row.metric, row.change)}" if i and row.change is not None else against_baseline(row)
        for i, row in enumerate(case.spoke)
    ]
    failed = [check.name for check in case.judgement.checks if not check.ok]
    if failed:
        parts.append(f"{', '.join(failed)} failed")
    if case.judgement.diagnosis:
        first = case.judgement.diagnosis[0]
        parts.insert(0 if first.rule == "workload" else min(1, len(parts)), first.cause)
    return "; ".join(parts) or case.because


def verdict(case: Case) -> str:
    """``PASS llama3-1b.mb1: throughput +0.4 % (tolerance 1.5 %, would have seen 1.9 %)``."""
    return f"{case.verdict} {case.key}: {why(case)}"


def progress(key: str, pass_: str, launch: int, of: int, phase: str, tokens_per_s: float | None = None) -> str:
    """``llama3-1b.mb1  timed launch 2 of 3  window, 40,772 tokens/s/GPU in warm-up``.

    The window itself tells nothing before its end, and what is injected is not in the steps of warm-up.
    """
    speed = "" if tokens_per_s is None else f", {significant(tokens_per_s)} tokens/s/GPU in warm-up"
    return f"{key}  {pass_} launch {launch} of {of}  {phase}{speed}"


def injected(case: Case) -> str:
    """``slowdown: 10.0 % requested, 10.2 % achieved``; "" where nothing was injected."""
    return "; ".join(describe_fault(*fault) for fault in case.faults)
