"""Requests for models small enough to train in a fraction of a second, and the world of one rank to train them in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_charllm.records import Fault, Pass, RankReport, RankRequest, from_json, tier
from pytest_charllm.scenario import Layout, Options, Precision, Scenario, Training

LIMIT_S = 480
"""Of one launch of many cases. A minute where nothing else runs, and several where the cores are shared."""

MakeRequest = Callable[..., RankRequest]
RunRanks = Callable[[Path, Path, int], None]
TrainCases = Callable[[int, Mapping[str, tuple[str, RankRequest]]], dict[str, list[RankReport]]]


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
    precision: Precision = Precision.FP32,
    compiled: bool = False,
    pass_: Pass = Pass.DIAGNOSTIC,
    faults: tuple[Fault, ...] = (),
    **other: Any,
) -> RankRequest:
    """`other`: fields of Layout, Options and RankRequest by their names."""
    layout = {name: other.pop(name) for name in Layout.__struct_fields__ if name in other}
    options = {name: other.pop(name) for name in Options.__struct_fields__ if name in other}
    scenario = Scenario(
        work=Training(model=model, microbatch=microbatch, layers=layers, global_batch=global_batch, seq=seq),
        layout=Layout(**layout),
        options=Options(precision=precision, compile=compiled, **options),
    )
    return _of_scenario(scenario, pass_=pass_, faults=faults, **other)


def _of_scenario(scenario: Scenario, **other: Any) -> RankRequest:
    return RankRequest(
        nonce="engine-test", scenario=scenario, window=tier("smoke", True).window, device="cpu", out_dir=".",
        deadline_s=100.0, **{"pass_": Pass.DIAGNOSTIC, **other},
    )  # fmt: skip


@pytest.fixture(scope="session")
def request_of(parity_seed: int) -> Callable[[Scenario], RankRequest]:
    """The diagnostic pass of a scenario, with the seed of the command line."""
    return partial(_of_scenario, seed=parity_seed)


@pytest.fixture(scope="session")
def train_cases(tmp_path_factory: pytest.TempPathFactory) -> TrainCases:
    """(world, {name: (change, request)}) -> {name: every rank's report}, one after the other in the same processes."""

    def train(world: int, cases: Mapping[str, tuple[str, RankRequest]]) -> dict[str, list[RankReport]]:
        folder = tmp_path_factory.mktemp(f"{world}-ranks")
        encoded = [(name, change, msgspec.to_builtins(request)) for name, (change, request) in cases.items()]
        (folder / "cases.json").write_text(json.dumps(encoded))
        _run_ranks(Path(__file__).with_name("rank_program.py"), folder, world)
        return {
            name: [
                from_json((path := folder / f"{name}.{rank}.json").read_bytes(), RankReport, path)
                for rank in range(world)
            ]
            for name in cases
        }

    return train


@pytest.fixture(scope="session")
def run_ranks() -> RunRanks:
    """(program, its folder, world) -> nothing, once every rank has ended well."""
    return _run_ranks


def _run_ranks(program: Path, folder: Path, world: int) -> None:
    ranks = [_start(program, folder, rank, world) for rank in range(world)]
    ended_s = time.monotonic() + LIMIT_S
    try:
        codes = [_wait(process, ended_s - time.monotonic()) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    outputs = [(folder / f"output.{rank}").read_text() for rank in range(world)]
    if None in codes:
        last = "; ".join(f"rank {rank}: {output[-300:]}" for rank, output in enumerate(outputs))
        pytest.fail(
            f"ranks were not done after {LIMIT_S} s, a hang or a machine too busy for tests: {last}", pytrace=False
        )
    assert codes == [0] * world, "".join(outputs)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Its exit code; None where it has not ended in time."""
    try:
        return process.wait(timeout=max(0.0, limit_s))
    except subprocess.TimeoutExpired:
        return None


def _start(program: Path, folder: Path, rank: int, world: int) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (str(Path(__file__).parents[2]), *sys.path) if path)
    with (folder / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(program), str(folder)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
