"""What other rules would have said of recorded runs, beside what was said when they were made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_charllm.errors import BadRecord
from pytest_charllm.records import Judgement, Verdict
from pytest_charllm.store.reading import read_record

UNCONFIRMED = "to be confirmed"
"""How the reason of a judgement begins whose confirming launches nobody recorded."""


def backtest(judgements: Sequence[Judgement], launches: Path) -> list[str]:
    """Lines for the summary: on how many scenarios the rules fire, each with its numbers and its verdict then.

    `launches` is the folder that was replayed; the verdicts of its run lie beside it, where it is that of a run.
    """
    fired = [judgement for judgement in judgements if judgement.verdict is Verdict.REGRESSION]
    breached = [each for each in judgements if each.verdict is Verdict.INCONCLUSIVE and _unconfirmed(each)]
    lines = [f"these rules would have fired on {len(fired)} of {len(judgements)} recorded scenarios"]
    lines += [f"  {each.scenario_key}: {each.because}{_then(each, launches)}" for each in fired]
    lines += [
        f"  {each.scenario_key}: {each.because.partition('; a confirming')[0]}, but no more launches are on record"
        f"{_then(each, launches)}"
        for each in breached
    ]
    silent = [each for each in judgements if each not in fired and each not in breached]
    lines += [
        f"  {each.scenario_key}: would not have fired{_then(each, launches)}"
        for each in silent
        if _recorded(each, launches) is Verdict.REGRESSION
    ]
    return lines


def _unconfirmed(judgement: Judgement) -> bool:
    return judgement.because.startswith(UNCONFIRMED)


def _then(judgement: Judgement, launches: Path) -> str:
    verdict = _recorded(judgement, launches)
    return "; no verdict was recorded" if verdict is None else f"; recorded as {verdict}"


def _recorded(judgement: Judgement, launches: Path) -> Verdict | None:
    try:
        found = read_record(launches.parent / "judgements" / f"{judgement.scenario_key}.json", Judgement)
    except BadRecord:  # of another version: the launches can be judged all the same
        return None
    return None if found is None else found.verdict
