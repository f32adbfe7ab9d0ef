"""``pytest-charllm inject [SCENARIO]``: known faults put into real launches, and which of them the judge sees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_charllm.commands import OK, REFUSED
from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.records import tier
from pytest_charllm.records.faults import parse_fault, refuse_absent_step
from pytest_charllm.records.tiers import window_of
from pytest_charllm.records.warmup import known_steps
from pytest_charllm.report.text import grid
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.paths import shown

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import CampaignProgress
    from pytest_charllm.commands.drill import Drill
    from pytest_charllm.commands.simulated_drill import SimulatedDrill

TINY = "tiny-llama.dp2.mb2.fp32.eager"
"""Small enough for any CPU, and of two ranks, so that every fault has a place in it."""
FOLDER = "inject"
"""Below the runs' folder, so that the latest run stays the latest that measured something."""
HEADERS = ("fault", "requested", "achieved", "verdict", "by", "launches", "told")


def run_inject(options: argparse.Namespace) -> int:
    """Exit code 1 when a fault was missed: a gate that judged what shows it, and saw nothing."""
    from pytest_charllm.commands.simulated_drill import DRILLS

    done: list[Drill] = []
    simulated = () if options.fault else map(_simulated, DRILLS)
    for each in chain(() if options.simulated else _real(options), simulated):
        print(f"{each.fault}: {each.verdict}", file=sys.stderr, flush=True)  # a drill that is cut off has told so far
        done.append(each)
    print(grid(HEADERS, [_row(each) for each in done], ("requested", "achieved", "launches"), last_width=60))
    verdicts = [each.verdict for each in done]
    missed, blind = verdicts.count("MISSED"), verdicts.count("not judged")
    print(f"\n{verdicts.count('seen')} seen, {missed} missed{f', {blind} not judged' if blind else ''}")
    return REFUSED if missed else OK


def _real(options: argparse.Namespace) -> Iterator[Drill]:
    from pytest_charllm.campaign.settings import Settings
    from pytest_charllm.commands.drill import drill, drills_for, reference
    from pytest_charllm.devices.find import cpu_machine, find_machine

    scenario = parse_key(options.scenario)
    faults = [parse_fault(text) for text in options.fault] or drills_for(scenario)
    machine = cpu_machine() if options.scenario == TINY else find_machine()
    broken = infeasible(scenario, CATALOGUE[machine.variant], machine)
    if broken is not None:
        raise BadInput(f"{scenario.key} cannot run on {machine.variant} {machine.shape}: {broken}")
    # A drill is about speed: its diagnostic pass would prove once more what no fault touches.
    smoke = replace(tier("smoke", machine.is_cpu), diagnostic=False)
    steps = known_steps(window_of(smoke.window, scenario))
    for fault in faults:
        if fault.rank is not None and fault.rank >= scenario.layout.world:
            raise BadInput(f"{fault.name}: {scenario.key} has no rank {fault.rank}")
        if steps is not None:
            refuse_absent_step(fault, steps)
    settings = Settings(
        machine=machine, tier=smoke, root=options.root / FOLDER, shipped=options.root / FOLDER / "none",
        arguments=f"pytest-charllm inject {scenario.key}", on_progress=_tell,
    )  # fmt: skip
    clean = reference(scenario, settings)
    print(f"{scenario.key} on {machine.variant} {machine.shape}; launches in {shown(settings.root / 'runs')}\n")
    yield from (drill(scenario, settings, fault, clean) for fault in faults)


def _simulated(each: SimulatedDrill) -> Drill:
    from pytest_charllm.commands.drill import drilled
    from pytest_charllm.commands.simulated_drill import run_simulated

    judgement = run_simulated(each)
    achieved = next((row.value for row in judgement.metrics if row.metric == each.metric), None)
    told = "" if achieved is None else f"{100 * achieved:.1f} %"
    return drilled(f"{each.name} (simulated)", f"{100 * each.share:.1f} %", told, judgement)


def _row(done: Drill) -> tuple[str, ...]:
    return done.fault, done.requested, done.achieved, done.verdict, done.seen, str(done.launches), done.told


def _tell(progress: CampaignProgress) -> None:
    if progress.phase == "window":
        print(f"{progress.scenario_key}: launch {progress.launch} of {progress.of}", file=sys.stderr, flush=True)
