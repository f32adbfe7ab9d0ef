"""What is worth a line beside the verdict: what the launches said, once each, and what the judge noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from pytest_charllm.judge.metric import Outcome
from pytest_charllm.judge.reference import Recorded, cards_of
from pytest_charllm.judge.tolerances import LOCAL_RUNS, WARMER
from pytest_charllm.judge.wording import moved, name
from pytest_charllm.judge.yardstick import Call
from pytest_charllm.records import Baseline, BaselineSample, Finding, Measurement


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
    for before, after in zip(first, again, strict=False):
        if (before.call is Call.WORSE) is not (after.call is Call.WORSE):
            text = f"{name(before.metric)} {before.seen} in the first round, {after.seen} in the confirmation"
            findings.append(Finding(kind="not-confirmed", text=text))
    return tuple(findings)


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
        findings.append(Finding(kind="foreign-card", text=text))
    if baseline is not None:
        times = Counter(run.run_id for run in baseline.stacks)
        findings += [
            Finding(kind="duplicate-run", text=f"run {run_id} is on record {count} times and counts once")
            for run_id, count in times.items()
            if count > 1
        ]
    return tuple(findings)


def thermal_findings(
    recorded: Sequence[Recorded], launches: Sequence[Measurement], outcomes: Sequence[Outcome]
) -> tuple[Finding, ...]:
    """Where the degrees themselves may not be compared (another card, another start): how far a watt heats the core.

    ``(core temperature at the end - at the start) / mean power``, in degC/W. A word of warning, never a verdict: short
    windows end before the temperature is steady.
    """
    if not any(outcome.metric == "core_temp_end" and outcome.call is Call.UNJUDGED for outcome in outcomes):
        return ()
    reference = [sample for run in recorded if run.segment == recorded[-1].segment for sample in run.samples]
    here = [rise for launch in launches if (rise := _rise_a_watt(launch)) is not None]
    there = [rise for sample in reference if (rise := _rise_a_watt(sample)) is not None]
    if not here or not there or median(here) <= (1 + WARMER) * median(there) or median(there) <= 0:
        return ()
    text = f"the core heats by {median(here):.3f} degC/W, on record {median(there):.3f}: look at cooling and dust"
    return (Finding(kind="thermal-resistance", text=text),)


def _rise_a_watt(launch: Measurement | BaselineSample) -> float | None:
    def value(metric: str) -> float | None:
        return launch.number(metric) if isinstance(launch, Measurement) else launch.values.get(metric)

    end_c, power_w = value("core_temp_end"), value("mean_power")
    if end_c is None or not power_w or not launch.start_temp_c:
        return None
    return (end_c - max(launch.start_temp_c.values())) / power_w
