"""Faults that nobody can put into a real card: a hot one, one at its power limit, from the simulated board.

Sensors are the simulated board's on a clock of its own, so nothing is launched and nothing waits. Steps take as long as
its clock says. Measuring and judging are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from pytest_charllm.commands.accept import sample_of
from pytest_charllm.devices.find import simulated_machine
from pytest_charllm.devices.simulated.board import PROFILES
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.hardware import Machine
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.policy import Policy
from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import (
    Baseline,
    BaselineStack,
    EndLine,
    Judgement,
    Launch,
    Measurement,
    Meta,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    SampleLine,
    Stack,
    Status,
    StepSeries,
    Tier,
    Trace,
    Warmup,
    WindowEdges,
    tier,
)
from pytest_charllm.records.telemetry import QUANTITIES
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.key import parse_key

KEY = "llama3-1b.mb1"
VARIANT = "h200-sxm"
_STEPS, _STEP_S, _TOKENS = 50, 0.125, 4096
_BEGIN_S, _AFTER_S, _PERIOD_S = 2.0, 1.0, 0.1
_DEMAND_W = 690.0
"""Just below the limit: the clean board is at its full clock."""
_HOT_C = 20.0


@dataclass(frozen=True)
class Night:
    """What a launch of one night is like. `demand_w` above the limit is capped; `throttled` is a share of the time in
    thermal slowdown, and `clock` what that leaves of the clock."""

    demand_w: float = _DEMAND_W
    clock: float = 1.0
    throttled: float = 0.0
    hotter_c: float = 0.0


class SimulatedDrill(NamedTuple):
    """`share` of the window is asked for under the limit that `metric` tells."""

    name: str
    night: Night
    metric: str
    share: float


DRILLS = (
    SimulatedDrill("thermal slowdown", Night(clock=0.94, throttled=0.68, hotter_c=_HOT_C), "throttle_sw_thermal", 0.68),
    SimulatedDrill("power cap", Night(demand_w=860.0), "throttle_power_cap", 1.0),
)


def run_simulated(drill: SimulatedDrill) -> Judgement:
    """Judge nights of this kind against clean ones, with as many launches as the judge asks for."""
    scenario, machine, smoke = parse_key(KEY), simulated_machine(VARIANT, 1), tier("smoke", is_cpu=False)
    number = 0

    def launched(night: Night) -> Measurement:
        nonlocal number
        number += 1
        return _measured(scenario, machine, smoke, night, number)

    clean = [launched(Night()) for _ in range(smoke.bootstrap_launches)]
    comparable = comparable_of(machine, smoke.window, clean)
    stack = BaselineStack(
        stack=Stack(), run_id="clean", accepted="", accepted_by="inject", because="simulated", host="",
        samples=tuple(sample_of(each) for each in clean),
    )  # fmt: skip
    baseline = Baseline(scenario_key=KEY, comparable=comparable, stacks=(stack,))
    return _decided(Policy(smoke, is_cpu=False), scenario, baseline, lambda: launched(drill.night))


def _decided(policy: Policy, scenario: Scenario, baseline: Baseline, launch: Callable[[], Measurement]) -> Judgement:
    rounds: list[list[Measurement]] = [[]]
    while True:
        outcome = policy.decide(scenario, baseline, baseline.comparable, rounds, None)
        if isinstance(outcome, Judgement):
            return outcome
        if outcome.confirms and len(rounds) < 2:
            rounds.append([])
        rounds[-1] += [launch() for _ in range(outcome.launches)]


def _measured(scenario: Scenario, machine: Machine, smoke: Tier, night: Night, number: int) -> Measurement:
    profile = replace(PROFILES["h200"], demand_w=night.demand_w, compute_share=1.0)
    uuid = machine.devices[0].uuid
    now = [0]
    simulation = Simulation(profile, (uuid,), clock=lambda: now[0])
    clock = simulation.gpu.sm_clock_mhz(_BEGIN_S) / profile.sm_max_mhz * night.clock
    step_s = _STEP_S / clock
    end_s = _BEGIN_S + _STEPS * step_s
    source = simulation.source()
    devices = source.devices()
    samples = []
    while now[0] < (end_s + _AFTER_S) * 1e9:
        now[0] += round(_PERIOD_S * 1e9)
        samples.append(_heated(source.read(uuid, QUANTITIES), night, now[0] / 1e9 - _BEGIN_S))
    trace = Trace(
        meta=Meta(source=simulation.name, host="", period_s=_PERIOD_S, pid=0, mono_ns=0, wall_s=0.0),
        devices={line.uuid: line for line in devices},
        samples={uuid: tuple(samples)},
        end=EndLine(mono_ns=now[0], samples=len(samples), cpu_s=0.0, reason="simulated"),
    )
    report = RankReport(
        nonce="", rank=0, world_size=1, host="", pid=0, pass_=Pass.TIMED, tokens_per_step=_TOKENS, software=Stack(),
        device=RankDevice(kind="cuda", name=devices[0].name, uuid=uuid), phases=Phases(),
        steps=StepSeries(wall_s=(step_s,) * _STEPS), warmup=Warmup(steps=0, steady=True, reason="simulated"),
        window=WindowEdges(begin_mono_ns=round(_BEGIN_S * 1e9), end_mono_ns=round(end_s * 1e9)),
    )  # fmt: skip
    launch = Launch(
        id=f"{KEY}.timed-{number}", scenario=scenario, pass_=Pass.TIMED, window=smoke.window, status=Status.COMPLETED,
        ranks=(report,), simulated=True,
    )  # fmt: skip
    return measure(launch, trace, machine)


def _heated(sample: SampleLine, night: Night, loaded_s: float) -> SampleLine:
    """The board knows no thermal slowdown: degrees, clock and counter of one are laid over its own."""
    if loaded_s <= 0 or not night.throttled:
        return sample
    values = dict(sample.values)
    for quantity, change in (
        ("core_temp_c", lambda value: value + night.hotter_c),
        ("margin_c", lambda value: value - night.hotter_c),
        ("sm_clock_mhz", lambda value: value * night.clock),
        ("throttle_sw_thermal_ns", lambda value: value + night.throttled * loaded_s * 1e9),
    ):
        value = values.get(quantity)
        if value is not None:
            values[quantity] = change(value)
    return msgspec.structs.replace(sample, values=values)
