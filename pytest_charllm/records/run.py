"""One pytest invocation: what was asked for, where, and how it ended."""

from __future__ import annotations

from enum import StrEnum

from pytest_charllm.hardware import Machine
from pytest_charllm.records.base import SCHEMA, Record
from pytest_charllm.records.launch import Fault


class RunStatus(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class RunInfo(Record, frozen=True, kw_only=True):
    """File ``run.json``. Still "running" on disk when its process was killed: only its lock tells these two apart."""

    schema: int = SCHEMA
    id: str
    started: str
    """UTC, ISO 8601."""
    finished: str | None = None
    status: RunStatus = RunStatus.RUNNING
    machine: Machine
    tier: str
    host: str
    commit: str | None = None
    """Git commit of the project under test, with ``-dirty`` when its tracked files were changed."""
    arguments: str = ""
    """The command line."""
    seed: int = 1234
    faults: tuple[Fault, ...] = ()
    replayed: bool = False
    notes: tuple[str, ...] = ()


class Ended(Record, frozen=True, kw_only=True):
    """File ``ended/<key>.json``: how a scenario stands in pytest's summary, which the last of its tests decides."""

    scenario_key: str
    outcome: str
    """A verdict, MEASURED, HARNESS, CRASHED..., or WAIVED, which is a judge's REGRESSION."""
    because: str
    """One line."""
