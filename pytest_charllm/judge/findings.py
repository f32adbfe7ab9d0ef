"""What is worth a line beside the verdict: what the launches said, once each, and what the judge noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_charllm.judge.foreign import allowed, known_ratio
from pytest_charllm.judge.metric import Outcome
from pytest_charllm.judge.reference import cards_of
from pytest_charllm.judge.tolerances import CARDS_APART, LOCAL_RUNS
from pytest_charllm.judge.wording import moved, name
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import Baseline, Finding, Measurement

WORTH_A_WORD = 0.0005
"""Less between cards reads as nothing."""


def merged_findings(launches: Sequence[Measurement]) -> tuple[Finding, ...]:
    """The launches' findings, one group a kind: the first launch's own words, and how many launches said so."""
    said: dict[str, list[Finding]] = {}
    times: dict[str, int] = {}
    for launch in launches:
        for kind in dict.fromkeys(finding.kind for finding in launch.findings):
            said.setdefault(kind, [finding for finding in launch.findings if finding.kind == kind])
            times[kind] = times.get(kind, 0) + 1
    return tuple(
        Finding(kind=kind, text=f"{finding.text} (in {times[kind]} of {len(launches)} launches)")
        if len(launches) > 1
        else finding
        for kind, findings in said.items()
        for finding in findings
    )


def judge_findings(first: Sequence[Outcome], again: Sequence[Outcome]) -> tuple[Finding, ...]:
    """Breaches that only one round saw, records too noisy to judge by, and moves that only inform."""
    findings = [
        Finding(kind="unreliable", text=f"{name(outcome.metric)}: {outcome.reason}")
        for outcome in first
        if outcome.call is Call.UNRELIABLE
    ]
    findings += [
        Finding(kind="moved", text=f"{name(outcome.metric)} {moved(outcome.metric, outcome.change)}")
        for outcome in first
        if outcome.informational and outcome.change is not None and abs(outcome.change) > (outcome.tolerance or 0)
    ]
    findings += _provisional(first, again)
    for before, after in zip(first, again, strict=False):
        if (before.call is Call.WORSE) is not (after.call is Call.WORSE):
            text = f"{name(before.metric)} {before.seen} in the first round, {after.seen} in the confirmation"
            text += f" ({after.reason})" if after.call is Call.NO_EVIDENCE else ""
            findings.append(Finding(kind="not-confirmed", text=text))
    return tuple(findings)


def _provisional(first: Sequence[Outcome], again: Sequence[Outcome]) -> list[Finding]:
    """What was called by assumed noise. Of what passed, its own line says so."""
    confirmed = {outcome.metric for outcome in again if outcome.call is Call.WORSE}
    names: dict[str, list[str]] = {}
    for outcome in first:
        called = outcome.call is Call.BETTER or (outcome.call is Call.WORSE and outcome.metric in confirmed)
        if called and outcome.provisional and outcome.noise is not None and outcome.noise.launch:
            names.setdefault(outcome.provisional, []).append(name(outcome.metric))
    return [Finding(kind="provisional", text=f"{', '.join(each)}: {why}") for why, each in names.items()]


def record_findings(
    baseline: Baseline | None, outcomes: Sequence[Outcome], launches: Sequence[Measurement]
) -> tuple[Finding, ...]:
    """What is worth knowing about the record itself: other cards than those at hand, runs that are in it twice."""
    findings = []
    if any(outcome.foreign for outcome in outcomes) and baseline is not None:
        here = {cards_of(launch) for launch in launches}
        ours = {uuid for cards in here for uuid in cards}
        segment = baseline.segments()[-1]
        local = sum({cards_of(sample) for sample in run.samples} == here for run in segment)
        others = sorted({uuid for run in segment for sample in run.samples for uuid in sample.device_uuids} - ours)
        text = (
            f"on record from other cards ({', '.join(others)}): tolerances include the difference between cards until "
            f"{LOCAL_RUNS} runs from these are on record ({local} so far)"
        )
        ratio = known_ratio(outcome.card_ratio for outcome in outcomes)
        if abs(ratio - 1) >= WORTH_A_WORD:
            most = f", of which {100 * CARDS_APART:g} % are allowed for" if allowed(ratio) != ratio else ""
            text += (
                f"; these take {100 * (ratio - 1):+.1f} % for the same matrix product{most}: speed and energy on "
                "record stand here as they would have made them"
            )
        findings.append(Finding(kind="foreign-card", text=text))
    if baseline is not None:
        times = Counter(run.run_id for run in baseline.stacks)
        findings += [
            Finding(kind="duplicate-run", text=f"run {run_id} is on record {count} times and counts once")
            for run_id, count in times.items()
            if count > 1
        ]
    return tuple(findings)
