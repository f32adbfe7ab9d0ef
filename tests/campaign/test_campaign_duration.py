"""Minutes of a plan: an estimate, but one that moves the right way and is of the right size."""

from __future__ import annotations

import pytest

from pytest_charllm.campaign.duration import duration_s, step_s, total_s
from pytest_charllm.campaign.settings import Planned
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.records import TIERS
from pytest_charllm.scenario import Scenario, Script
from pytest_charllm.scenario.key import parse_key

H200 = CATALOGUE["h200-sxm"]
NIGHTLY = TIERS["nightly", False]


@pytest.mark.parametrize(
    ("key", "measured_s"),
    [
        ("llama3-1b.mb1", 4096 / 64_219),
        ("llama3-1b.mb4", 4 * 4096 / 73_828),
        ("llama3-8b.8L.mb1", 8192 / 35_869),
        ("gpt3-175b.2L.mb1", 2048 / 17_383),
    ],
)
def test_steps_are_about_those_of_the_h200(key: str, measured_s: float) -> None:
    """A plan in minutes for a night of hours: model FLOPs for executed ones, GPUs forgotten, ms for s."""
    assert step_s(parse_key(key), H200.peak_bf16_flops or 0.0) == pytest.approx(measured_s, rel=0.4)


@pytest.mark.parametrize(
    ("keys", "measured_s"),
    [
        (("llama3-1b.mb1", "gpt3-175b.2L.mb1"), 260),
        (("llama3-1b.mb2", "llama3-1b.mb4", "llama3-8b.8L.mb1"), 390),
    ],
)
def test_nights_are_about_those_of_the_h200(keys: tuple[str, ...], measured_s: float) -> None:
    """Three launches each, without a traced one: a fifth too much of every launch was hours of a plan of eight GPUs."""
    planned = total_s(duration_s(Planned(parse_key(key)), H200, NIGHTLY, 3) for key in keys)
    assert planned == pytest.approx(measured_s, rel=0.1)


def test_first_night_traces_every_scenario() -> None:
    """What is not on record yet has a launch more than what is; smoke never does."""
    planned = Planned(parse_key("llama3-1b.mb1"))
    known, new = (duration_s(planned, H200, NIGHTLY, 3, traces=new) for new in (False, True))
    smoke = [duration_s(planned, H200, TIERS["smoke", False], 1, traces=new) for new in (False, True)]
    assert known is not None
    assert new == pytest.approx(known + 25)
    assert smoke[0] == smoke[1]


def test_simulated_gpus_have_the_windows_of_gpus() -> None:
    """What trains is a CPU, for 15 s each time: "about 1 min" were five."""
    planned = Planned(parse_key("tiny-gpt.dp2.mb2.fp32.eager"))
    assert duration_s(planned, CATALOGUE["cpu"], NIGHTLY, 3) == pytest.approx(90.0)
    assert duration_s(Planned(planned.scenario, speed=False), CATALOGUE["cpu"], NIGHTLY, 3) == pytest.approx(90.0)
    assert duration_s(planned, CATALOGUE["cpu"], TIERS["smoke", True], 3) == pytest.approx(37.0)
    assert duration_s(Planned(planned.scenario, speed=False), CATALOGUE["cpu"], TIERS["smoke", True], 3) == 7.0


def test_waiting_in_a_pipeline_takes_time() -> None:
    """Two microbatches on eight stages keep a rank busy for two ninths of the step."""
    few, many = (step_s(parse_key(f"llama3-1b.pp8.mb1.gb{size}"), 1e15) / size for size in (2, 128))
    assert few / many == pytest.approx((9 / 2) / (135 / 128))


def test_strict_rows_of_a_cpu_cost_one_launch() -> None:
    """They have no timed launch, of which others have five."""
    planned = [Planned(parse_key("tiny-llama.dp2.mb2.fp32.eager"), speed=speed) for speed in (True, False)]
    judged, strict = (duration_s(each, CATALOGUE["cpu"], TIERS["smoke", True], 5) for each in planned)
    assert judged == 57
    assert strict == 7


def test_what_is_not_known_counts_nothing() -> None:
    """A script's step is its own; a collective has none, and still has to start."""
    script = duration_s(Planned(Scenario(work=Script("train.py"))), H200, NIGHTLY, 3)
    assert script is None
    assert total_s([script, 60.0]) == 60.0
    assert duration_s(Planned(parse_key("all-reduce.dp8")), H200, NIGHTLY, 3) == 60.0
    assert duration_s(Planned(parse_key("all-reduce.dp2")), CATALOGUE["cpu"], TIERS["smoke", True], 5) is None


def test_routing_has_an_estimate_too() -> None:
    """DeepSpeed's mixtures have no exact count, and ended the plan with an error."""
    key = "mixtral-8x7b.4L.dp8+ep8+zero1.mb1.eager.real-routing.deepspeed"
    assert duration_s(Planned(parse_key(key)), H200, NIGHTLY, 3)
