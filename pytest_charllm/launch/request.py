"""What a launch is asked to do, and what it tells while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pytest_charllm.hardware import Machine
from pytest_charllm.records import Fault, Pass, WindowRule
from pytest_charllm.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long is too long, in seconds. Every wait of a launch is bounded by one of these.

    A rank that has told its step time may be silent for `steps` of them, but never for less than `step_s`; before
    that `start_s` bounds its start and rendezvous, `compile_s` everything else (building, the first steps).
    """

    start_s: float = 180.0
    compile_s: float = 900.0
    step_s: float = 30.0
    steps: float = 5.0
    total_s: float = 3600.0
    settle_s: float = 10.0
    """After a rank failed or left: how long the rest may take to end by itself."""
    exit_s: float = 5.0
    """After all ranks reported: how long the processes may take to be gone."""


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
    """What the first rank is doing. `phase` is "start" until it has said anything itself; `elapsed_s` since launch."""

    phase: str
    step: int | None
    tokens_per_s: float | None
    elapsed_s: float
