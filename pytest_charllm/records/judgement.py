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


class Noise(Record, frozen=True, kw_only=True):
    """Standard deviations of one metric by where they come from, relative where the metric is; None: not known.

    `launch`: between launches of one run. `run`: between runs on the same cards. `card`: between cards.
    """

    launch: float | None = None
    run: float | None = None
    card: float | None = None
    assumed: tuple[str, ...] = ()
    """The parts that are not from this scenario's own record: shipped, or its siblings'."""
    runs: int = 0
    """Runs on record."""

    @property
    def provisional(self) -> bool:
        """Whether launches and runs of this scenario are still too few to show their own spread."""
        return "launch" in self.assumed or "run" in self.assumed


class MetricVerdict(Record, frozen=True, kw_only=True):
    """`change` and `tolerance` are relative (0.012 = 1.2 %) where the metric is, else in its unit.

    `would_have_seen`: the change in the wrong direction that would have been called nine times in ten.
    `false_alarm`: the chance that unchanged code is called a regression. Both include the confirmation, with the run's
    own effect shared between breach and confirmation; None where the noise is not known. The second also includes how
    uncertain an estimated noise is.
    """

    metric: str
    verdict: Verdict
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    tolerance: float | None = None
    would_have_seen: float | None = None
    false_alarm: float | None = None
    noise: Noise | None = None
    card_ratio: float = 1.0
    """How much longer these cards take for the same product than those on record; `reference` is what they would have
    made."""
    launches: int = 0
    """Launches behind `value`."""
    gate: str | None = None
    """"Gate A" or "Gate B" on a CPU."""
    reason: str = ""


class Diagnosis(Record, frozen=True, kw_only=True):
    """Why a scenario moved, from its evidence. `text` is one line, the conclusion last."""

    rule: str
    """Which rule says so: "thermal", "slow-card", "software"..., "unknown" where evidence is missing."""
    cause: str
    """The conclusion alone, short: ``cooling, GPU-7cd6... slot 3``."""
    text: str
    devices: tuple[str, ...] = ()
    """UUIDs of the GPUs that are slower than their neighbours or their own record."""


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
    """(part, on record, here); a script that was edited is the first of them."""
    diagnosis: tuple[Diagnosis, ...] = ()
    """The most specific first."""
    launches: int = 0
    confirmed: bool = False


class NeedMore(Record, frozen=True, kw_only=True):
    """The judge cannot decide yet: `launches` fresh ones, once the devices are back at `cool_to_c` (by UUID).

    `confirms`: they belong to the confirmation, which starts with them where there is none yet; otherwise they fill up
    the first round.
    """

    launches: int
    reason: str
    confirms: bool = False
    cool_to_c: dict[str, float] = {}
