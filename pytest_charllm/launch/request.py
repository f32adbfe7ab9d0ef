"""What a launch is asked to do, and what it tells while it runs."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.hardware import Machine
from pytest_charllm.records import Fault, Pass, RankRequest, WindowRule
from pytest_charllm.scenario import Scenario, Script


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long is too long, in seconds. Every wait of a launch is bounded by one of these.

    A rank that has said when its next word is due may be silent for `silence_factor` times as long, and for
    `silence_s` at least; otherwise `start_s` bounds its start, rendezvous and report, `compile_s` everything else
    (building the model, the first steps).
    """

    start_s: float = 180.0
    compile_s: float = 900.0
    silence_s: float = 30.0
    silence_factor: float = 5.0
    total_s: float = 3600.0
    settle_s: float = 10.0
    """After a rank failed or left: how long the rest may take to end by itself."""
    exit_s: float = 5.0
    """After all ranks reported: how long the processes may take to be gone."""


def limits_of(scenario: Scenario) -> Limits:
    """A script knows best how long it may be silent: from its start to its end it is one phase."""
    work = scenario.work
    if isinstance(work, Script):
        return Limits(compile_s=work.silence_s, total_s=work.deadline_s)
    return Limits(total_s=Limits.total_s + 60.0 * scenario.options.soak)


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """One launch: `directory` is its own empty folder, `cache_dir` the compiler cache its whole run shares."""

    id: str
    scenario: Scenario
    pass_: Pass
    window: WindowRule
    machine: Machine
    directory: Path
    cache_dir: Path
    source: str
    """Telemetry source: "nvml", "cpu" or "simulated:<variant>"."""
    device_uuids: tuple[str, ...] = ()
    """The devices to run on, one a rank; () on a CPU."""
    faults: tuple[Fault, ...] = ()
    seed: int = 1234
    diagnostic_steps: int = 5
    limits: Limits = field(default_factory=Limits)

    @property
    def device(self) -> str:
        """The torch device type of the ranks. A simulated machine trains on the CPU."""
        return "cuda" if self.device_uuids and not self.machine.simulated else "cpu"


@dataclass(frozen=True)
class Progress:
    """What the first rank is doing. `phase` is "start" until it has said anything itself; `elapsed_s` since launch,
    `expected_s` until its next word is due."""

    phase: str
    step: int | None
    tokens_per_s: float | None
    elapsed_s: float
    expected_s: float | None = None


def rank_request(request: LaunchRequest) -> RankRequest:
    """What the ranks read. The nonce is fresh, so that no answer of another launch can be taken for this one's."""
    return RankRequest(
        nonce=secrets.token_hex(8),
        scenario=_located(request.scenario),
        pass_=request.pass_,
        window=request.window,
        device=request.device,
        faults=request.faults,
        seed=request.seed,
        diagnostic_steps=request.diagnostic_steps,
        out_dir=".",
        deadline_s=request.limits.total_s,
    )


def _located(scenario: Scenario) -> Scenario:
    """A script's file by its absolute path: a repro bundle is started from anywhere."""
    work = scenario.work
    if not isinstance(work, Script) or work.module:
        return scenario
    return replace(scenario, work=replace(work, path=os.path.abspath(work.path)))
