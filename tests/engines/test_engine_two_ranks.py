"""Training on two gloo ranks: parity with one process, traffic and FLOPs as predicted, and bugs that must show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_charllm.records import Fault, Pass, RankReport, RankRequest, from_json, tier
from pytest_charllm.scenario import Precision, Recompute, Sharding
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.models import parameters, shape_of
from pytest_charllm.scenario.traffic import MIB, collectives

FP32, BF16 = (1e-6, 1e-5), (5e-4, 2e-2)
"""Relative limits of the loss and of the gradient norm."""

SOUND: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp-gpt": {"model": "tiny-gpt"},
    "ddp-accumulation": {"global_batch": 8},
    "ddp-bf16": {"precision": Precision.BF16, "global_batch": 8},
    "ddp-selective": {"recompute": Recompute.SELECTIVE},
    "ddp-full": {"recompute": Recompute.FULL, "model": "tiny-gpt"},
    "ddp-odd-sequence": {"seq": 31, "microbatch": 1},
    "fsdp": {"sharding": Sharding.FSDP},
    "fsdp-gpt-accumulation": {"sharding": Sharding.FSDP, "model": "tiny-gpt", "global_batch": 8},
    "fsdp-bf16": {"sharding": Sharding.FSDP, "precision": Precision.BF16},
    "fsdp-full": {"sharding": Sharding.FSDP, "recompute": Recompute.FULL},
    "fsdp-selective": {"sharding": Sharding.FSDP, "recompute": Recompute.SELECTIVE, "global_batch": 8},
}
BROKEN = ("unweighted-microbatches", "unreduced-gradients", "reduced-every-microbatch")
SLOWED = {"pass_": Pass.TIMED, "layers": 1, "faults": (Fault(name="slowdown", value=0.2, rank=1),)}

MakeRequest = Callable[..., RankRequest]


@pytest.fixture(scope="module")
def answers(make_request: MakeRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RankReport]]:
    """Both ranks' reports of every case, trained one after the other in a single pair of processes."""
    folder = tmp_path_factory.mktemp("two-ranks")
    cases = [(name, "", make_request(dp=2, **case)) for name, case in SOUND.items()]
    cases += [(name, name, make_request(dp=2, global_batch=8)) for name in BROKEN]
    cases.append(("small-buckets", "small-buckets", make_request(dp=2, layers=None)))
    cases.append(("slowed", "", make_request(dp=2, **SLOWED)))
    encoded = [(name, change, msgspec.to_builtins(request)) for name, change, request in cases]
    (folder / "cases.json").write_text(json.dumps(encoded))
    ranks = [_start(folder, rank) for rank in range(2)]
    try:
        codes = [process.wait(timeout=240) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert codes == [0, 0], (folder / "output.0").read_text() + (folder / "output.1").read_text()
    names = [name for name, _, _ in cases]
    return {name: [_report(folder / f"{name}.{rank}.json") for rank in range(2)] for name in names}


def _start(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (str(Path(__file__).parents[2]), *sys.path) if path)
    command = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(folder)]
    with (folder / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _report(path: Path) -> RankReport:
    return from_json(path.read_bytes(), RankReport, path)


def _differences(report: RankReport) -> tuple[float, float]:
    """The largest relative difference from the reference: of the losses, of the gradient norms."""
    assert report.reference is not None
    pairs = ((report.losses, report.reference.losses), (report.grad_norms, report.reference.grad_norms))
    loss, norm = (max(abs(a / b - 1) for a, b in zip(here, there, strict=True)) for here, there in pairs)
    return loss, norm


@pytest.mark.parametrize("name", SOUND)
def test_trains_like_one_fp32_process(answers: dict[str, list[RankReport]], name: str) -> None:
    """A layout, accumulation, recompute or precision that changes what is learnt."""
    report = answers[name][0]
    loss_limit, norm_limit = BF16 if "bf16" in name else FP32
    loss, norm = _differences(report)
    assert len(report.losses) == len(report.grad_norms) == 5
    assert loss <= loss_limit
    assert norm <= norm_limit
    assert len(set(report.losses)) == 5


@pytest.mark.parametrize("name", SOUND)
def test_does_the_collectives_and_flops_on_paper(
    answers: dict[str, list[RankReport]], make_request: MakeRequest, name: str
) -> None:
    """A lost or doubled collective or product, by a change of ours or of torch's."""
    scenario = make_request(dp=2, **SOUND[name]).scenario
    for report in answers[name]:
        assert [tuple(msgspec.structs.astuple(each)) for each in report.collectives] == list(collectives(scenario))
        assert report.flops_per_step == hardware_flops_per_step(scenario)
        assert report.parameters == parameters(shape_of(scenario))


def test_ranks_agree(answers: dict[str, list[RankReport]]) -> None:
    """Losses and norms are those of the global batch, not of a rank's own share. Only rank 0 trains the reference."""
    for first, second in answers.values():
        assert (first.losses, first.grad_norms) == (second.losses, second.grad_norms)
        assert second.reference is None


@pytest.mark.parametrize("name", ["unweighted-microbatches", "unreduced-gradients"])
def test_parity_notices_wrong_gradients(answers: dict[str, list[RankReport]], name: str) -> None:
    """AdamW hides the scale of a gradient from the loss; the gradient norm must not."""
    assert _differences(answers[name][0])[1] > 1e-2


def test_traffic_notices_needless_reductions(answers: dict[str, list[RankReport]], make_request: MakeRequest) -> None:
    """Reducing in every microbatch learns the same, at twice the traffic."""
    report = answers["reduced-every-microbatch"][0]
    assert _differences(report)[1] <= FP32[1]
    expected = collectives(make_request(dp=2, global_batch=8).scenario)
    assert [2 * each.bytes for each in expected] == [each.bytes for each in report.collectives]


def test_many_buckets_are_as_predicted(answers: dict[str, list[RankReport]], make_request: MakeRequest) -> None:
    """The order in which gradients of a real decoder become ready decides how many buckets large models need."""
    expected = collectives(make_request(dp=2, layers=None).scenario, bucket_cap_bytes=MIB)
    assert expected[0].count > 8
    assert [tuple(msgspec.structs.astuple(each)) for each in answers["small-buckets"][0].collectives] == list(expected)


def test_a_slowdown_of_one_rank_leaves_the_ranks_in_step(answers: dict[str, list[RankReport]]) -> None:
    """Sizing trains extra steps: a rank that skipped them would wait for ever in a collective, or run ahead."""
    clean, slowed = answers["slowed"]
    assert clean.faults == ()
    [fault] = slowed.faults
    assert fault.requested == 0.2
    assert fault.achieved is not None
    assert fault.achieved > 0
    assert clean.warmup == slowed.warmup


def test_a_timed_report_is_complete(answers: dict[str, list[RankReport]]) -> None:
    """The measuring side needs wall, CPU time and one of each calibration for every step, within the window's edges."""
    steps = tier("smoke", is_cpu=True).window.min_steps
    for report in answers["slowed"]:
        assert report.steps is not None
        assert report.window is not None
        assert len(report.steps.wall_s) == len(report.steps.cpu_s) == steps
        assert [each.kind for each in report.calibration] == ["matmul", "decoder"]
        for each in report.calibration:
            assert len(each.wall_s) == len(each.cpu_s) == steps
        inside_s = sum(report.steps.wall_s) + sum(sum(each.wall_s) for each in report.calibration)
        assert inside_s <= (report.window.end_mono_ns - report.window.begin_mono_ns) / 1e9
        assert report.losses == report.collectives == ()
