"""Requests for models small enough to train in a fraction of a second, and the world of one rank to train them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_charllm.records import Fault, Pass, RankRequest, tier
from pytest_charllm.scenario import Layout, Options, Precision, Recompute, Scenario, Sharding, Training

MakeRequest = Callable[..., RankRequest]


@pytest.fixture(scope="session")
def make_request() -> MakeRequest:
    return _request


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank of a launch."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)


def _request(
    *,
    model: str = "tiny-llama",
    layers: int | None = 2,
    seq: int = 32,
    microbatch: int = 2,
    global_batch: int | None = None,
    dp: int = 1,
    sharding: Sharding = Sharding.NONE,
    recompute: Recompute = Recompute.NONE,
    precision: Precision = Precision.FP32,
    compiled: bool = False,
    pass_: Pass = Pass.DIAGNOSTIC,
    faults: tuple[Fault, ...] = (),
    **other: Any,
) -> RankRequest:
    scenario = Scenario(
        work=Training(model=model, microbatch=microbatch, layers=layers, global_batch=global_batch, seq=seq),
        layout=Layout(dp=dp, sharding=sharding),
        options=Options(recompute=recompute, precision=precision, compile=compiled),
    )
    return RankRequest(
        nonce="engine-test", scenario=scenario, pass_=pass_, window=tier("smoke", True).window, device="cpu",
        faults=faults, out_dir=".", deadline_s=100.0, **other,
    )  # fmt: skip
