"""What the judge says: a verdict a metric, joined into one, or the wish for more launches."""

from __future__ import annotations

from enum import StrEnum

from pytest_charllm.records.base import SCHEMA, Record
from pytest_charllm.records.measurement import Check, Finding


class Verdict(StrEnum):
    PASS = "PASS"
    IMPROVED = "IMPROVED"
    REGRESSION = "REGRESSION"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    INVALID = "INVALID"
    INFEASIBLE = "INFEASIBLE"
    NOT_JUDGED = "NOT_JUDGED"
    """Of a single metric only: nothing to compare with or no evidence, and the tier does not require it."""


class MetricVerdict(Record, frozen=True, kw_only=True):
    """`change` and `tolerance` are relative (0.012 = 1.2 %) where the metric is, else in its unit.

    `would_have_seen`: the smallest change in the wrong direction that would have been called, at these launches.
    """

    metric: str
    verdict: Verdict
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    tolerance: float | None = None
    would_have_seen: float | None = None
    gate: str | None = None
    """"Gate A" or "Gate B" on a CPU."""
    reason: str = ""


class Judgement(Record, frozen=True, kw_only=True):
    """One item's whole story. `because` is one line. `launches` counts timed ones, confirmation included."""

    schema: int = SCHEMA
    scenario_key: str
    verdict: Verdict
    because: str
    metrics: tuple[MetricVerdict, ...] = ()
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    stack_diff: tuple[tuple[str, str | None, str | None], ...] = ()
    """(part, on record, here)."""
    launches: int = 0
    confirmed: bool = False


class NeedMore(Record, frozen=True, kw_only=True):
    """The judge cannot decide yet: `launches` fresh ones, once the devices are back at `cool_to_c` (by UUID)."""

    launches: int
    reason: str
    cool_to_c: dict[str, float] = {}
