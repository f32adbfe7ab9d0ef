"""The whole line on simulated GPUs: found, launched on gloo, sampled through the vendor's calls, measured, judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pytest_charllm.devices.find import simulated_machine
from pytest_charllm.devices.open import source_of
from pytest_charllm.devices.simulated.board import PROFILES, SimulatedGpu
from pytest_charllm.errors import BadInput
from pytest_charllm.judge.comparability import comparable_of
from pytest_charllm.judge.policy import Policy
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.request import LaunchRequest, Limits
from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import Judgement, Status, Validity, Verdict, WindowRule, tier
from pytest_charllm.telemetry.reader import read_trace

WINDOW = WindowRule(
    tier="smoke", min_steps=6, min_seconds=2.0, warmup_steps=2, warmup_seconds=0.0, warmup_max_steps=4, steady_steps=1,
    steady_ratio=1.0,
)  # fmt: skip


def test_an_mi250_is_two_ranks_and_one_package(make_request: Callable[..., LaunchRequest], tmp_path: Path) -> None:
    """Two ranks on the two dies of one package: energy once, not twice, and nothing of it ever on record."""
    machine = simulated_machine("mi250", 2)
    request = make_request(
        machine=machine,
        device_uuids=tuple(device.uuid for device in machine.devices),
        source=source_of(machine),
        window=WINDOW,
        limits=Limits(total_s=90),
    )
    launch = TorchrunLauncher().run(request)
    assert (launch.status, launch.failure) == (Status.COMPLETED, None)
    assert [report.device.uuid for report in launch.ranks] == ["GPU-simulated-0", "GPU-simulated-1"]
    assert launch.telemetry is not None
    trace = read_trace(request.directory / launch.telemetry)
    assert list(trace.devices) == ["GPU-simulated-0"]
    assert {"rest", "dense"} <= {event.kind for event in trace.events}

    measurement = measure(launch, trace, machine)
    board = SimulatedGpu(PROFILES["mi250"])
    assert measurement.validity is not Validity.INVALID, measurement.reason
    assert (launch.simulated, measurement.simulated, machine.simulated) == (True, True, True)
    assert measurement.number("mean_power") == pytest.approx(board.load_w, rel=0.1)
    assert measurement.values["mean_power"].source == "counter"
    tokens = launch.ranks[0].tokens_per_step * len(launch.ranks[0].steps.wall_s)
    joules = (measurement.number("energy_per_token") or 0.0) * tokens
    assert joules == pytest.approx(board.load_w * (launch.ranks[0].phases.window_s or 0.0), rel=0.1)

    smoke = msgspec.structs.replace(tier("smoke", is_cpu=False), window=WINDOW)
    comparable, rounds = comparable_of(machine, WINDOW, [measurement]), [[measurement] * smoke.bootstrap_launches]
    judged = Policy(smoke, is_cpu=False).decide(launch.scenario, None, comparable, rounds, None)
    assert isinstance(judged, Judgement)
    assert judged.verdict is Verdict.NO_BASELINE


@pytest.mark.parametrize(("variant", "source"), [("h200-sxm", "simulated:h200"), ("mi300x", "simulated:mi300x")])
def test_each_simulated_machine_is_found_like_a_real_one(variant: str, source: str) -> None:
    """Names, limits and order come through the vendor's calls and the child process that asks a real driver."""
    machine = simulated_machine(variant, 4)
    assert (machine.variant, machine.shape, machine.simulated) == (variant, "1x4", True)
    assert len({device.uuid for device in machine.devices}) == 4
    assert all(device.power_limit_w for device in machine.devices)
    assert source_of(machine) == source


def test_what_has_no_simulation_is_named() -> None:
    """Silently simulating another card would judge it by the wrong limits."""
    with pytest.raises(BadInput, match="no simulation of b200-sxm: there are h200-sxm, h100-sxm, mi250, mi300x"):
        simulated_machine("b200-sxm", 2)
