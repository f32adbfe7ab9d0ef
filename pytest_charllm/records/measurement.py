"""One launch reduced to one value per metric, and what the diagnostic pass proved."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pytest_charllm.records.base import MEASURING, SCHEMA, Record
from pytest_charllm.records.stack import Stack
from pytest_charllm.scenario.flops import FLOP_FORMULA


class Validity(StrEnum):
    """tainted: usable for speed, with something worth a line (counter and integral disagree a little,
    memory errors were counted).
    invalid: must not be judged."""

    VALID = "valid"
    TAINTED = "tainted"
    INVALID = "invalid"


class Value(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A number or the reason there is none.

    `coverage`: share of the window with readings in time, 0 to 1. `gap_s`: the longest time without one.
    """

    value: float | None
    unit: str
    coverage: float | None = None
    gap_s: float | None = None
    reason: str | None = None
    source: str | None = None
    """Where two ways exist, the one used: "counter" or "integral"."""


class Finding(Record, frozen=True, kw_only=True):
    """Anything worth a line that is not a verdict: "power-capped", "not-steady", "slow-rank", "foreign-process"..."""

    kind: str
    text: str


class Check(Record, frozen=True, kw_only=True):
    """A strict check: true on every machine, needs no baseline. `limit` is relative; 0 means exactly equal."""

    name: str
    """"loss parity", "gradient norm parity", "parameters", "FLOPs", "collective count", "collective bytes"."""
    ok: bool
    expected: str
    observed: str
    limit: float = 0.0
    detail: str = ""


class Measurement(Record, frozen=True, kw_only=True):
    """`values` by metric id. `start_temp_c` is the mean core temperature before the window's load, by device UUID."""

    schema: int = SCHEMA
    measuring: int = MEASURING
    launch_id: str
    scenario_key: str
    started: str
    stack: Stack
    device_uuids: tuple[str, ...]
    values: dict[str, Value]
    start_temp_c: dict[str, float] = {}
    per_rank: dict[str, tuple[float | None, ...]] = {}
    """Metric -> one number a rank, in rank order as `device_uuids`: of the step, the calibrations, clock, core
    temperature and throttled time; of a traced launch the parts of its step, where all ranks do the same work. Empty of
    a single rank."""
    window_s: float | None = None
    workload: dict[str, str] = {}
    """Fingerprint of what was trained: "parameters", "FLOPs/token", "tokens/step", "attention", "experts",
    "collectives" (diagnostic pass); of a script its file alone, as "script": ``train.py 3f2a9c1b04de``."""
    semantics: dict[str, str] = {}
    """Sensor quantity -> meaning, where it is part of comparability."""
    flop_formula: str = FLOP_FORMULA
    power_limit_w: float | None = None
    window_tier: str = ""
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    validity: Validity = Validity.VALID
    reason: str | None = None
    """Why not valid."""
    injected: bool = False
    replayed: bool = False
    simulated: bool = False

    def number(self, metric: str) -> float | None:
        value = self.values.get(metric)
        return None if value is None else value.value


def numbers_of(launches: Iterable[Measurement], metric: str) -> list[float]:
    """The values of one metric, of those launches that have one."""
    return [number for launch in launches if (number := launch.number(metric)) is not None]


def why_missing(launches: Iterable[Measurement], metric: str) -> str:
    """The first reason that one of the launches gives, "not measured" where none gives any."""
    reasons = (launch.values[metric].reason for launch in launches if metric in launch.values)
    return next((reason for reason in reasons if reason), "not measured")
