"""Putting scripts on record: what they are judged by must be there, and agree with itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_charllm.commands.accept import Accepted, Refused, accept
from pytest_charllm.hardware import Machine
from pytest_charllm.records import (
    METRICS,
    Comparable,
    Judgement,
    Launch,
    Measurement,
    Pass,
    Stack,
    Status,
    Value,
    Verdict,
    tier,
    to_json,
)
from pytest_charllm.scenario import Scenario, Script
from pytest_charllm.store.baselines import BaselineStore
from pytest_charllm.store.run import RunDirectory

Values = dict[str, float]
MARKED = Script("train.py")


def recorded(root: Path, machine: Machine, launches: Sequence[Values], script: Script) -> RunDirectory:
    """A run of one script, a launch for each of these values."""
    run = RunDirectory.create(root / ".charllm", machine=machine, tier="smoke" if machine.is_cpu else "nightly")
    scenario = Scenario(work=script)
    for n, values in enumerate(launches, 1):
        told = {metric: Value(value=value, unit=METRICS[metric].unit) for metric, value in values.items()}
        launch = Launch(
            id=f"l.timed-{n}", scenario=scenario, pass_=Pass.TIMED, status=Status.COMPLETED,
            window=tier("nightly", machine.is_cpu).window,
        )  # fmt: skip
        (run.launch_directory(scenario.key, Pass.TIMED, n) / "launch.json").write_bytes(to_json(launch))
        run.save_measurement(
            Measurement(
                launch_id=launch.id, scenario_key=scenario.key, started="2026-11-29T12:00:00Z", stack=Stack(),
                device_uuids=(), values=told,
            )
        )  # fmt: skip
    run.save_judgement(Judgement(scenario_key=scenario.key, verdict=Verdict.NO_BASELINE, because="nothing on record"))
    here = Comparable(variant=machine.variant, shape=machine.shape, flop_formula="f", window="w", measuring=1)
    run.save_comparable(scenario.key, here)
    run.finish()
    return run


@pytest.fixture
def take(project: Path) -> Callable[..., Accepted | Refused]:
    def accepted(machine: Machine, launches: Sequence[Values], script: Script = MARKED) -> Accepted | Refused:
        store = BaselineStore(shipped=project / "baselines", local=project / ".charllm" / "baselines")
        (result,) = accept(recorded(project, machine, launches, script), store, accepted_by="me")
        return result

    return accepted


@pytest.mark.parametrize(
    ("cpu_s", "told"),
    [
        ((0.020, 0.0204, 0.0201, 0.0199, 0.0202), None),
        ((0.020, 0.025, 0.021, 0.019, 0.024), "step cpu time of the 5 launches scatters by 11.87 % (CoV)"),
    ],
)
def test_cpu_time_has_to_agree(take, cpu: Machine, cpu_s: tuple[float, ...], told: str | None) -> None:  # type: ignore[no-untyped-def]
    """A script has no strict checks that a baseline without speed could stand for."""
    result = take(cpu, [{"step_cpu_time": value, "step_time": 0.03} for value in cpu_s])
    assert isinstance(result, Accepted if told is None else Refused)
    if told is not None:
        assert result.reason.startswith(told)
        assert "measure again on a quieter machine (longer steps or more launches do not" in result.reason


@pytest.mark.parametrize(
    ("step_s", "busyness", "told"),
    [
        ((0.030, 0.031, 0.030, 0.029, 0.030), (1.1,) * 5, None),
        ((0.030, 0.036, 0.031, 0.026, 0.035), (1.1,) * 5, "step time of the 5 launches scatters by 12.78 % (CoV)"),
        (
            (0.030, 0.031, 0.030, 0.029, 0.030),
            (1.1, 1.6, 1.1, 2.0, 1.1),
            "machine busy in 2 of 5 launches (wall/CPU up",
        ),
    ],
)
def test_a_log_goes_on_record_from_a_quiet_cpu(take, cpu: Machine, step_s, busyness, told) -> None:  # type: ignore[no-untyped-def]
    """It tells wall time alone: beside other work that is the speed of the other work."""
    values = [{"step_time": step, "busyness": busy} for step, busy in zip(step_s, busyness, strict=True)]
    result = take(cpu, values, Script("train.py", log="auto"))
    assert isinstance(result, Accepted if told is None else Refused)
    if told is not None:
        assert result.reason.startswith(told)


def test_unknown_tokens_do_not_bar_a_gpu(take, h200: Machine) -> None:  # type: ignore[no-untyped-def]
    """The tier requires tokens a second of everything else; of such a script, its step."""
    sensors = {"mean_power": 600.0, "core_temp_end": 60.0, "hbm_temp_end": 50.0, "margin_min": 27.0}
    sensors |= {"throttle_sw_thermal": 0.0, "throttle_hw": 0.0}
    assert isinstance(take(h200, [{"step_time": 0.2, **sensors}] * 3), Accepted)
