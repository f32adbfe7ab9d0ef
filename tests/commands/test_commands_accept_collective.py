"""Curves of collectives go on record whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_charllm.commands.accept import Accepted, Refused, accept
from pytest_charllm.errors import BadInput
from pytest_charllm.judge.collective import collective_rules
from pytest_charllm.records import Launch, Pass, Status, tier, to_pretty_json
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.baselines import BaselineStore
from pytest_charllm.store.run import RunDirectory

KEY = "all-reduce.dp2.upto4kib"
NUMBERS = {"latency_1kib": 2e-5, "bus_bandwidth_1kib": 0.05, "latency_4kib": 2e-5, "bus_bandwidth_4kib": 0.2}
NO_STEP = dict.fromkeys(("throughput", "energy_per_token"))


@pytest.fixture
def store(project: Path) -> BaselineStore:
    return BaselineStore(project / "baselines", project / ".charllm" / "baselines")


def launched(run: RunDirectory) -> RunDirectory:
    launch = Launch(
        id=f"{KEY}.timed-1", scenario=parse_key(KEY), pass_=Pass.TIMED, window=tier("smoke", False).window,
        status=Status.COMPLETED,
    )  # fmt: skip
    (run.launch_directory(KEY, Pass.TIMED, 1) / "launch.json").write_bytes(to_pretty_json(launch))
    return run


def test_a_whole_curve_goes_on_record(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """The metrics that training requires are not there, and nobody misses them."""
    run = launched(gpu_run(key=KEY, values=NO_STEP | NUMBERS))
    (result,) = accept(run, store, accepted_by="ada")
    assert isinstance(result, Accepted)
    assert "latency_4kib" in collective_rules(parse_key(KEY).work)  # type: ignore[arg-type]


def test_a_curve_with_a_hole_is_refused(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """A size that is not on record would never be judged again, without a word."""
    run = launched(gpu_run(key=KEY, values=NO_STEP | NUMBERS | {"latency_4kib": None}))
    (result,) = accept(run, store, accepted_by="ada")
    assert isinstance(result, Refused)
    assert "has no latency_4kib: not read" in result.reason


def test_a_curve_of_a_cpu_is_no_refusal(cpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """It is recorded, never judged: `accept latest` must not end red because of it."""
    with pytest.raises(BadInput, match="holds no timed scenario"):
        accept(launched(cpu_run([7.6], key=KEY)), store, accepted_by="ada")
