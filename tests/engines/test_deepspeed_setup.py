"""What DeepSpeed is told, what its log is read as, and what is said where it cannot be used."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from pytest_charllm.engines.deepspeed import installation
from pytest_charllm.engines.deepspeed.config import config
from pytest_charllm.engines.deepspeed.installation import NotUsable
from pytest_charllm.errors import HarnessError
from pytest_charllm.records import Collective, Pass
from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.key import parse_key


def test_missing_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of an import in every one of its scenarios, filed as a crash of the training."""

    def no_version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(installation, "version", no_version)
    with pytest.raises(
        NotUsable, match=r"^DeepSpeed is not installed: pip install deepspeed, or .* -k 'not deepspeed'$"
    ) as caught:
        installation.load("cpu")
    assert caught.value.kind == "environment"


def test_broken_is_one_line_that_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that fails inside of DeepSpeed says nothing of the torch beside it."""
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(installation, "version", {"deepspeed": "0.0.1", "torch": "9.9"}.__getitem__)
    with pytest.raises(
        NotUsable, match=r"DeepSpeed 0\.0\.1 does not import beside torch 9\.9 \(.*Error: .*constraints"
    ):
        installation.load("cpu")


def test_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed compiles a CPU operator in every cold cache, and fails without a compiler: within the launch's time."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    installation.load("cpu")
    from deepspeed import ops

    assert not ops.__compatible_ops__.get("deepspeed_shm_comm", False)
    assert not ops.__compatible_ops__["deepspeed_shm_comm"]


def test_the_timed_pass_measures_nothing_by_itself() -> None:
    """DeepSpeed's own clocks and logs wait for the device in every step."""
    asked = config(parse_key("tiny-llama.dp2+zero3.mb2.gb16.eager.no-overlap.reduce7.prefetch8.live9.deepspeed"), 1.0)
    assert not asked["wall_clock_breakdown"]
    assert not asked["timers"]["throughput"]["enabled"]
    assert "comms_logger" not in asked
    assert (asked["train_batch_size"], asked["gradient_accumulation_steps"]) == (16, 4)
    assert asked["bf16"]["enabled"]
    zero = asked["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"], zero["reduce_bucket_size"]) == (3, False, 7)
    assert zero["stage3_prefetch_bucket_size"] == 8
    assert zero["stage3_max_live_parameters"] == zero["stage3_max_reuse_distance"] == 9


@pytest.mark.parametrize(
    ("pass_", "layout", "on"),
    [
        (Pass.TIMED, "dp2", False),
        (Pass.TRACED, "dp2", False),
        (Pass.DIAGNOSTIC, "dp2", True),
        (Pass.DIAGNOSTIC, "pp2", False),
    ],
)
def test_its_timers_run_beside_the_timed_pass(request_of: Any, pass_: Pass, layout: str, on: bool) -> None:
    """A wait for the device in what is timed; and in a pipeline of 0.19.8 they raise."""
    from pytest_charllm.engines.deepspeed import timers

    request = request_of(parse_key(f"tiny-llama.2L.{layout}.mb2.gb8.eager.deepspeed"), pass_=pass_)
    assert timers.are_on(request) is on
    assert config(request.scenario, 1.0, timers=on)["wall_clock_breakdown"] is on


def test_parts_are_of_the_median_step() -> None:
    """Milliseconds taken for seconds, or one microbatch for the step."""
    from pytest_charllm.engines.deepspeed.timers import parts_s

    steps = [{"fwd": f, "bwd": 9.0, "bwd_allreduce": 2.0, "step": 1.0, "fwd_microstep": 0.1} for f in (3.0, 80.0, 4.0)]
    assert parts_s(steps) == pytest.approx({"forward": 4e-3, "backward": 9e-3, "reduction": 2e-3, "update": 1e-3})
    assert parts_s([]) == {}


def test_the_log_is_read_by_the_size_of_the_whole_tensor() -> None:
    """DeepSpeed logs a gather by its shard and a reduce-scatter by the whole; a norm in double is no gradient."""
    from pytest_charllm.engines.deepspeed.traffic import collectives

    log = {
        "all_gather_into_tensor": {100: [3, [0.1]]},
        "reduce_scatter_tensor": {400: [1, [0.1]], 800: [2, [0.1]]},
        "all_reduce": {8: [1, [0.1]], 4: [1, [0.1]]},
        "all_to_all_single": {64: [2, [0.1]]},
        "barrier": {0: [1, [0.1]]},
    }
    assert collectives(log, Layout(dp=4)) == (
        Collective(op="all-gather", axis="dp", count=3, bytes=1200),
        Collective(op="reduce-scatter", axis="dp", count=3, bytes=2000),
        Collective(op="all-to-all", axis="ep", count=2, bytes=128),
        Collective(op="all-reduce", axis="world", count=2, bytes=12),
    )
    with pytest.raises(HarnessError, match="all_gather_coalesced"):
        collectives({"all_gather_coalesced": {8: [1]}}, Layout(dp=2))
