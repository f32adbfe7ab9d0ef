"""From a verdict and its evidence to the reasons why."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.judge.diagnosis.evidence import Evidence
from pytest_charllm.judge.diagnosis.rules import BESIDE, BY_EXCLUSION, CAUSES, OF_CARDS, Rule, unknown, workload
from pytest_charllm.records import Baseline, Diagnosis, Measurement, MetricVerdict, Verdict


def diagnose(
    verdict: Verdict,
    rows: Sequence[MetricVerdict],
    launches: Sequence[Measurement],
    aside: Measurement | None,
    baseline: Baseline | None,
    stack_diff: tuple[tuple[str, str | None, str | None], ...],
) -> tuple[Diagnosis, ...]:
    """Every rule that has something to say of a regression, the most specific first; of other verdicts, slow cards.

    A workload that changed is the one thing said of it: what it did to the speed is no slowness. Only beside a script
    that was edited, which may have changed nothing, stand causes with evidence of their own. A regression that no rule
    explains says which evidence is missing. Nothing without launches, or where only strict checks broke.
    """
    if not launches:
        return ()
    held_against = baseline if any(row.reference is not None for row in rows) else None
    e = Evidence.of(rows, launches, aside, held_against, stack_diff)
    if verdict is not Verdict.REGRESSION:
        return _said(OF_CARDS, e)
    if not any(row.verdict is Verdict.REGRESSION for row in rows):
        return ()
    changed = workload(e)
    if changed is not None:
        return (changed, *(_said((*CAUSES, *BESIDE), e) if e.is_edited else ()))
    causes = _said(CAUSES, e) or _said(BY_EXCLUSION, e)
    return (*causes, *_said(BESIDE, e)) or (unknown(e),)


def _said(rules: Sequence[Rule], e: Evidence) -> tuple[Diagnosis, ...]:
    return tuple(said for rule in rules if (said := rule(e)) is not None)
