"""What a campaign is asked to do, and what it tells while doing it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_charllm.devices.open import source_of
from pytest_charllm.hardware import Machine
from pytest_charllm.judge.rules import NO_CHANGE, Rules
from pytest_charllm.records import Baseline, Fault, Launch, Measurement, Pass, Tier, numbers_of
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.script import refuse_namesake


@dataclass(frozen=True)
class Planned:
    """A scenario some test asks for. `speed` False: judged by the strict checks alone, so it needs no timed launch."""

    scenario: Scenario
    speed: bool = True


def by_key(planned: Iterable[Planned]) -> dict[str, Planned]:
    """One entry a key, in order of first mention; judged for speed when any test asks for it.

    Raises `BadInput` for two scripts of one key.
    """
    merged: dict[str, Planned] = {}
    for item in planned:
        refuse_namesake(item.scenario, merged.get(item.scenario.key, item).scenario)
        if item.speed or item.scenario.key not in merged:
            merged[item.scenario.key] = item
    return merged


@dataclass(frozen=True)
class CampaignProgress:
    """One change of phase, for a line on the terminal. `launch` counts from 1 within its pass; `tokens_per_s` are a
    rank's, as in every table."""

    scenario_key: str
    pass_: Pass
    launch: int
    of: int
    phase: str
    tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`root` holds runs and local baselines, `shipped` the baselines under version control."""

    machine: Machine
    tier: Tier
    root: Path
    shipped: Path
    launches: int | None = None
    """Timed launches of the first round; None: what the tier says."""
    faults: tuple[Fault, ...] = ()
    seed: int = 1234
    replay: Path | None = None
    rules: Rules = NO_CHANGE
    """In the place of those that ship, for a replay."""
    source: str | None = None
    """Telemetry source; None: the machine's own."""
    interleave: int = 4
    """How many neighbouring scenarios take turns, launch by launch, so that heat and hour spread over all of them."""
    arguments: str = ""
    """The command line, kept with the run."""
    on_progress: Callable[[CampaignProgress], None] = lambda progress: None
    find_baseline: Callable[[Machine, str], Baseline | None] | None = None
    """A site's own look-up, asked before the store."""

    @property
    def telemetry_source(self) -> str:
        return self.source or source_of(self.machine)


@dataclass
class Evidence:
    """All that is known about one scenario in this run. `rounds`: the first, then one per confirmation."""

    planned: Planned
    launches: list[Launch] = field(default_factory=list)
    rounds: list[list[Measurement]] = field(default_factory=list)
    aside: Measurement | None = None
    """What is not timed: the strict checks on a CPU, the parts of a traced step on a GPU."""
    failed: Launch | None = None
    """The first launch that crashed, hung or ran out of memory."""
    invalid: str | None = None
    """Why nothing here may be judged: our own side failed, or the measurement was disturbed."""
    harness: bool = False
    """Whether `invalid` is a failure of our own side."""
    repro: Path | None = None
    """Folder of the bundle that repeats the failed or regressed launch without pytest."""
    directories: dict[str, Path] = field(default_factory=dict)
    """Launch id -> its folder."""

    @property
    def scenario(self) -> Scenario:
        return self.planned.scenario

    @property
    def measurements(self) -> list[Measurement]:
        """Timed ones, all rounds in order."""
        return [measurement for group in self.rounds for measurement in group]

    def median(self, metric: str) -> float | None:
        """Median of one metric over the first round's launches, None where no launch has it."""
        numbers = numbers_of(self.rounds[0], metric) if self.rounds else []
        return statistics.median(numbers) if numbers else None
