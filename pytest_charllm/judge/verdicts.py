"""From what the rounds say about each metric to its verdict, and from all verdicts to one with its one line."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

import msgspec

from pytest_charllm.judge.metric import Outcome
from pytest_charllm.judge.tolerances import GATES
from pytest_charllm.judge.wording import amount, moved, name, width
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import Check, Measurement, MetricVerdict, Verdict, numbers_of

_VERDICTS = {
    Call.WITHIN: Verdict.PASS,
    Call.BETTER: Verdict.IMPROVED,
    Call.UNJUDGED: Verdict.NOT_JUDGED,
    Call.UNRELIABLE: Verdict.INCONCLUSIVE,
}


def metric_verdict(first: Outcome, again: Outcome | None, required: bool, rounds: Sequence[int]) -> MetricVerdict:
    """One metric after the first round and, where there was one, the confirmation.

    `rounds`: how many launches a complete first round and a complete confirmation take, for the error rates.
    A regression takes both rounds. A breach that the confirmation does not repeat gets the second round's numbers and
    verdict, with the first one's in the reason.
    """
    told, shown = "", first
    rates = first.stick.rates(rounds) if first.stick is not None else (None, None)
    if first.call is Call.WORSE and again is not None:
        if again.call is Call.WORSE:
            return _row(first, Verdict.REGRESSION, f"confirmed {again.seen}", rates)
        told, shown = f"first round {first.seen}, not confirmed", again
    if shown.call is Call.NO_EVIDENCE:
        return _row(shown, Verdict.INCONCLUSIVE if required else Verdict.NOT_JUDGED, told)
    return _row(shown, _VERDICTS[shown.call], told, rates)


def listed(metrics: Collection[str], launches: Sequence[Measurement], reason: str) -> list[MetricVerdict]:
    """Medians of metrics that are not held against anything; those that no launch has are left out."""
    rows = []
    for metric in metrics:
        numbers = numbers_of(launches, metric)
        if numbers:
            outcome = Outcome(metric, Call.UNJUDGED, statistics.median(numbers), reason=reason)
            rows.append(_row(outcome, Verdict.NOT_JUDGED))
    return rows


def without_baseline(row: MetricVerdict) -> MetricVerdict:
    """A measured value that nothing on record speaks about."""
    if row.value is None or row.verdict not in (Verdict.INCONCLUSIVE, Verdict.NOT_JUDGED):
        return row
    return msgspec.structs.replace(row, verdict=Verdict.NO_BASELINE)


def red(rows: Sequence[MetricVerdict], failed: Sequence[Check]) -> str:
    """Every reason for a regression in one line: failed checks first, then metrics, the worst first."""
    told = [f"{check.name}: expected {check.expected}, observed {check.observed}" for check in failed]
    regressed = [row for row in rows if row.verdict is Verdict.REGRESSION]
    told += [f"{name(row.metric)} {line(row)}, {row.reason}" for row in sorted(regressed, key=severity, reverse=True)]
    return "; ".join(told)


def undecided(rows: Sequence[MetricVerdict], required: Collection[str]) -> str | None:
    """Why required metrics could not be judged, in one line; None when all were. Others never withhold a PASS."""
    held = [row for row in rows if row.verdict is Verdict.INCONCLUSIVE and row.metric in required]
    return "; ".join(f"{name(row.metric)}{_beyond(row)}: {row.reason}" for row in held) or None


def green(rows: Sequence[MetricVerdict]) -> str:
    """What a pass rests on: the first judged metric with its power, or every improvement."""
    better = [f"{name(row.metric)} {line(row)}" for row in rows if row.verdict is Verdict.IMPROVED]
    if better:
        return "; ".join(better) + ": better than on record, accept the run to refresh the baseline"
    return next((f"{name(row.metric)} {line(row)}" for row in rows if row.verdict is Verdict.PASS), "")


def line(row: MetricVerdict) -> str:
    """``-6.1 % (tolerance 1.5 %)``, a pass with its power: ``+0.4 % (tolerance 1.5 %, would have seen 2.3 %)``, or with
    the reason why it is none of what its change says."""
    if row.change is None or row.tolerance is None:
        return "" if row.value is None else amount(row.metric, row.value)
    seen = ""
    if row.verdict is Verdict.PASS and row.would_have_seen is not None:
        seen = f", would have seen {width(row.metric, row.would_have_seen)}"
    although = f": {row.reason}" if row.verdict is Verdict.PASS and _beyond(row) else ""
    return f"{moved(row.metric, row.change)} (tolerance {width(row.metric, row.tolerance)}{seen}){although}"


def _beyond(row: MetricVerdict) -> str:
    """The change where it is beyond the tolerance, though something withholds the verdict that it would be; else ""."""
    if row.change is None or row.tolerance is None or abs(row.change) <= row.tolerance:
        return ""
    return f" {moved(row.metric, row.change)}"


def severity(row: MetricVerdict) -> float:
    """By how many tolerances it moved; what passed an absolute limit comes before all else."""
    return abs(row.change) / row.tolerance if row.change is not None and row.tolerance else float("inf")


def _row(
    outcome: Outcome, verdict: Verdict, told: str = "", rates: tuple[float | None, float | None] = (None, None)
) -> MetricVerdict:
    return MetricVerdict(
        metric=outcome.metric,
        verdict=verdict,
        value=outcome.value,
        reference=outcome.reference,
        change=outcome.change,
        tolerance=outcome.tolerance,
        would_have_seen=rates[0],
        false_alarm=rates[1],
        noise=outcome.noise,
        card_ratio=outcome.card_ratio,
        launches=outcome.launches,
        gate=GATES.get(outcome.metric),
        reason="; ".join(part for part in (told, outcome.reason) if part),
    )
