"""The window of a script: found over all ranks after the launch, from marks or from a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.script import windowed
from pytest_charllm.records import (
    Elapsed,
    Launch,
    Measurement,
    StepMarks,
    StepSeries,
    Unmeasured,
    Validity,
    Warmup,
    tier,
)
from pytest_charllm.scenario import Layout, Scenario, Script

WARMUP = tier("smoke", is_cpu=True).window.warmup_steps
WINDOW = tier("smoke", is_cpu=True).window.min_steps
T0_NS = 5_000_000_000
SCRIPT = Script("train.py")
LOGGED = Script("train.py", log="megatron-lm")


def marks(steps_s: list[float], *, tokens: int | None = None, cpu_share: float | None = 0.5) -> StepMarks:
    """A mark at `T0_NS`, and one after each step. `cpu_share` None: the device's marks."""
    instants = [T0_NS]
    for step_s in steps_s:
        instants.append(instants[-1] + round(step_s * 1e9))
    cpu = tuple(round(cpu_share * (instant - T0_NS)) for instant in instants) if cpu_share is not None else ()
    told = (0, *[tokens] * len(steps_s)) if tokens is not None else ()
    return StepMarks(mono_ns=tuple(instants), cpu_ns=cpu, tokens=told, on_device=cpu_share is None)


def launch_of(make: SimpleNamespace, *ranks: dict[str, Any], script: Script = SCRIPT, cpu: bool = True) -> Launch:
    build, world = (make.cpu_report if cpu else make.report), len(ranks)
    bare: dict[str, Any] = {"steps": None, "window": None, "warmup": None, "calibration": ()}
    bare |= {"tokens_per_step": script.tokens_per_step, "step_source": "marks, host clock"}
    reports = [build(rank, world, **(bare | changes)) for rank, changes in enumerate(ranks)]
    return replace(make.launch(reports, cpu=cpu), scenario=Scenario(work=script, layout=Layout(dp=world)))


def on_cpu(make: SimpleNamespace, *ranks: dict[str, Any], script: Script = SCRIPT) -> Measurement:
    return measure(launch_of(make, *ranks, script=script), None, make.cpu_machine(len(ranks)))


def test_window_begins_after_warm_up_on_every_rank(make: SimpleNamespace) -> None:
    """Each rank alone would choose another window; and the slow first steps must be in none."""
    steps = [1.0] * WARMUP + [0.1] * (WINDOW + 20)
    slower = [1.0] * WARMUP + [0.1, 0.3] + [0.1] * (WINDOW + 18)

    launch = windowed(launch_of(make, {"marks": marks(steps)}, {"marks": marks(slower)}))

    assert isinstance(launch, Launch)
    for report in launch.ranks:
        assert report.steps is not None
        assert len(report.steps.wall_s) == len(report.steps.cpu_s) == WINDOW
        assert report.window is not None
        assert report.window.begin_mono_ns == T0_NS + WARMUP * 10**9
        measured_ns = report.window.end_mono_ns - report.window.begin_mono_ns
        assert sum(report.steps.wall_s) == pytest.approx(measured_ns / 1e9)


def test_numbers_of_a_script_on_a_cpu(make: SimpleNamespace) -> None:
    """Worked out by hand: 2 ranks, steps of 0.1 s of which half is CPU time, 800 tokens."""
    steps = [0.1] * (WARMUP + WINDOW)
    measurement = on_cpu(make, {"marks": marks(steps, tokens=800)}, {"marks": marks(steps, tokens=800)})

    assert measurement.validity is Validity.VALID
    assert measurement.number("step_time") == pytest.approx(0.1)
    assert measurement.number("step_cpu_time") == pytest.approx(0.05)
    assert measurement.number("throughput") == pytest.approx(4000)
    assert measurement.number("busyness") == pytest.approx(2.0)
    assert measurement.values["mfu"].reason == "FLOPs of a script are not known"
    assert measurement.semantics == {"step_time": "marks, host clock", "tokens_per_step": "told by the script"}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script("/somewhere/train.py"), {"script": "train.py 3f2a9c1b04de"}),
        (Script("team.train", module=True), {"script": "team.train 3f2a9c1b04de"}),
    ],
)
def test_the_script_is_known_by_its_digest(make: SimpleNamespace, script: Script, told: dict[str, str]) -> None:
    """Else an edit is told as slower work of the same software. Where no rank kept it, nothing is told."""
    steps = {"marks": marks([0.1] * (WARMUP + WINDOW))}
    assert on_cpu(make, steps | {"script_digest": "3f2a9c1b04de"}, script=script).workload == told
    assert on_cpu(make, steps, script=script).workload == {}


@pytest.mark.parametrize("tokens", [None, 0])
def test_unknown_tokens_leave_step_time_and_a_line(make: SimpleNamespace, tokens: int | None) -> None:
    """Tokens per second of a guessed batch would look like any other number; joules over none are no number at all."""
    measurement = on_cpu(make, {"marks": marks([0.1] * (WARMUP + WINDOW), tokens=tokens)})

    assert measurement.number("step_time") == pytest.approx(0.1)
    assert measurement.values["throughput"].reason == "tokens per step are not known"
    (finding,) = [finding for finding in measurement.findings if finding.kind == "tokens-unknown"]
    assert "step time alone is judged" in finding.text
    assert "mark_step(tokens=...)" in finding.text


def test_declared_tokens_go_before_marked_ones_and_into_comparability(make: SimpleNamespace) -> None:
    """Another declaration is another number for the same run: never to be taken for a faster script."""
    steps = marks([0.1] * (WARMUP + WINDOW), tokens=800)
    measurement = on_cpu(make, {"marks": steps}, script=Script("train.py", tokens_per_step=1600))

    assert measurement.number("throughput") == pytest.approx(16000)
    assert measurement.semantics["tokens_per_step"] == "1600 declared"


def test_energy_of_a_marked_window(make: SimpleNamespace) -> None:
    """Marks are instants on the sampler's clock, so that joules per token of a script are those of its own steps."""
    steps = marks([0.125] * 100, tokens=8192, cpu_share=None)
    launch = launch_of(make, {"marks": steps}, script=SCRIPT, cpu=False)

    measurement = measure(launch, make.trace(make.healthy(), end_s=14.0), make.machine())

    assert measurement.validity is Validity.VALID, measurement.reason
    assert measurement.number("mean_power") == pytest.approx(600.0)
    assert measurement.number("energy_per_token") == pytest.approx(600 * 0.125 / 8192)
    assert measurement.values["cost_cpu"].value is None


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (2, "too-few-steps: warm-up did not end within 2 steps; call mark_step 28 times or more"),
        (20, "too-few-steps: 20 steps, warm-up took 3 of them, the window needs 24; call mark_step 28 times or more"),
    ],
)
def test_too_short_a_run_says_how_long_is_enough(make: SimpleNamespace, steps: int, reason: str) -> None:
    """A window cut short would be compared with whole ones."""
    measurement = on_cpu(make, {"marks": marks([0.1] * steps)})
    assert (measurement.validity, measurement.reason) == (Validity.INVALID, reason)


def test_as_many_calls_as_were_advised_are_enough(make: SimpleNamespace) -> None:
    """Steps lie between calls: 27 of them bound 26 steps, and whoever made those was told to make 27."""
    enough = marks([0.1] * (WARMUP + WINDOW))
    assert len(enough.mono_ns) == 28
    assert on_cpu(make, {"marks": enough}).validity is Validity.VALID
    assert on_cpu(make, {"marks": marks([0.1] * (WARMUP + WINDOW - 1))}).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("told", "reason"),
    [((True, True), "never-marked: no call"), ((False, True), "never-marked: rank 1: no call")],
)
def test_script_that_never_marks_is_invalid(make: SimpleNamespace, told: tuple[bool, ...], reason: str) -> None:
    """It ran to its end, so nothing crashed; but there is nothing to judge, and one line says why."""
    silent = {"unmeasured": Unmeasured(status="never-marked", message="no call")}
    marked = {"marks": marks([0.1] * (WARMUP + WINDOW))}
    measurement = on_cpu(make, *[silent if never else marked for never in told])
    assert (measurement.validity, measurement.reason) == (Validity.INVALID, reason)


def test_log_of_one_rank_stands_for_all(make: SimpleNamespace) -> None:
    """Trainers print on one rank, often the last; its times are the job's."""
    silent = {"unmeasured": Unmeasured(status="unknown", message="no reader knows this log")}
    telling = {
        "steps": StepSeries(wall_s=(0.2,) * 24),
        "warmup": Warmup(steps=5, steady=True, reason="steady"),
        "tokens_per_step": 1000,
        "step_source": "megatron-lm log, printed",
    }
    measurement = on_cpu(make, silent, telling, script=LOGGED)

    assert measurement.validity is Validity.VALID, measurement.reason
    assert measurement.number("throughput") == pytest.approx(2500)
    assert measurement.semantics == {"step_time": "megatron-lm log, printed", "tokens_per_step": "told by the script"}
    assert "a log does not say when its steps ran" in str(measurement.values["mean_power"].reason)
    assert measurement.values["step_cpu_time"].reason == "a log does not tell CPU time"


def test_a_log_is_as_busy_as_its_whole_script(make: SimpleNamespace) -> None:
    """No step of it has a CPU time, so nobody could say whether its wall time is its own."""
    told = {
        "steps": StepSeries(wall_s=(0.1,) * WINDOW),
        "warmup": Warmup(steps=WARMUP, steady=True, reason="steady"),
        "step_source": "megatron-lm log, printed",
    }
    ran = ({**told, "script": Elapsed(wall_s=9.0, cpu_s=8.0)}, {**told, "script": Elapsed(wall_s=9.0, cpu_s=7.0)})
    busyness = on_cpu(make, *ran, script=LOGGED).values["busyness"]
    assert busyness.value == pytest.approx(18 / 15)
    assert busyness.source == "whole script"
    assert on_cpu(make, told, script=LOGGED).values["busyness"].reason == "no CPU time of steps"


def test_the_closest_of_several_silent_logs_is_told(make: SimpleNamespace) -> None:
    """The ranks that print nothing by design must not hide what is wrong with the one that prints."""
    empty = {"unmeasured": Unmeasured(status="no-log", message="0.log: is empty")}
    short = {"unmeasured": Unmeasured(status="incomplete", message="1.log: Megatron-LM: 3 steps")}
    assert on_cpu(make, empty, short, script=LOGGED).reason == "incomplete: 1.log: Megatron-LM: 3 steps"


def test_log_without_steps_keeps_its_status(make: SimpleNamespace) -> None:
    """A garbled log is one line with its kind, not a number and not a crash."""
    garbled = {"unmeasured": Unmeasured(status="no-steps", message="out.log: Megatron-LM: no line tells how long")}
    measurement = on_cpu(make, garbled, script=LOGGED)
    assert measurement.validity is Validity.INVALID
    assert measurement.reason == "no-steps: out.log: Megatron-LM: no line tells how long"


@given(
    steps=st.lists(st.floats(1e-4, 10.0), min_size=WARMUP + WINDOW, max_size=80),
    delays=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=4),
)
def test_whatever_the_steps_all_ranks_get_one_window(
    make: SimpleNamespace, steps: list[float], delays: list[float]
) -> None:
    """Ranks that report different numbers of steps make no measurement: the choice must not depend on the rank."""
    launch = windowed(launch_of(make, *({"marks": marks([step + delay for step in steps])} for delay in delays)))
    assert isinstance(launch, Launch)
    assert {len(report.steps.wall_s) for report in launch.ranks if report.steps} == {WINDOW}
    assert len({report.warmup for report in launch.ranks}) == 1
