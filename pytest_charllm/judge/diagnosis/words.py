"""How a diagnosis is put: ``-6.1 % tokens/s; SM clock -5.9 %, thermal slowdown 41 s of 60 s: cooling``."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.judge.diagnosis.evidence import SPOKEN, Evidence, Move
from pytest_charllm.judge.wording import amount, moved, name
from pytest_charllm.records import Diagnosis, Verdict


def told(e: Evidence, rule: str, evidence: Sequence[str], cause: str, devices: Sequence[str] = ()) -> Diagnosis:
    """What moved, then what speaks for the cause, then the cause."""
    why = f"{', '.join(evidence)}: {cause}" if evidence else cause
    return Diagnosis(rule=rule, cause=cause, text=f"{what_moved(e)}; {why}", devices=tuple(devices))


def what_moved(e: Evidence) -> str:
    """The speed that regressed, else the first metric that did."""
    first = e.speed
    if first is None:
        row = next((row for row in e.rows.values() if row.verdict is Verdict.REGRESSION), None)
        first = e.move(row.metric) if row is not None else None
    if first is None:
        return "within tolerance"
    spoken = SPOKEN.get(first.metric, name(first.metric))
    if first.change is None:  # past an absolute limit, whatever is on record
        return f"{spoken} {amount(first.metric, first.now)}" if first.now is not None else spoken
    return f"{moved(first.metric, first.change)} {spoken}"


def seconds(e: Evidence, move: Move) -> str:
    """A share of the window as time: ``41 s of 60 s``; as a share where the window's length is not known."""
    share = move.now or 0.0
    if e.window_s is None:
        return f"in {100 * share:.0f} % of the window"
    return f"{share * e.window_s:.0f} s of {e.window_s:.0f} s"


def added(move: Move) -> str:
    """A part of a step that grew: ``exposed communication +3.1 ms a step (12.0 ms on record)``."""
    assert move.change is not None
    assert move.before is not None
    return f"{name(move.metric)} {1e3 * move.change:+.1f} ms a step ({1e3 * move.before:.1f} ms on record)"
