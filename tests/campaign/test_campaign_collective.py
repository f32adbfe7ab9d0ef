"""Collectives in a campaign: how often they are launched, and which launch repeats a wrong result."""

from __future__ import annotations

import pytest

from pytest_charllm.launch.names import LAUNCH
from pytest_charllm.records import (
    Launch,
    MessageTimes,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    Stack,
    Status,
    Verdict,
    WindowEdges,
    to_pretty_json,
)  # fmt: skip
from pytest_charllm.scenario.key import parse_key

KEY = "all-reduce.dp2.upto1kib"


@pytest.fixture
def sweeps(lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the launches, each of which ends with both ranks' sweeps: wrong on rank 1 once the list holds "wrong"."""
    seen: list[str] = []

    def run(request, on_progress=None) -> Launch:
        wrong = "wrong" in seen
        seen.append(request.id)
        ranks = tuple(
            RankReport(
                nonce="n", rank=rank, world_size=2, host="h", pid=1, pass_=request.pass_, tokens_per_step=None,
                device=RankDevice(kind="cpu", name="some CPU"), software=Stack(), phases=Phases(),
                window=WindowEdges(begin_mono_ns=1, end_mono_ns=2), transport="gloo: lo",
                messages=(MessageTimes(size=1024, bytes=1024, calls=20, wall_s=(1e-4,) * 3, wrong=wrong * rank),),
            )
            for rank in range(2)
        )  # fmt: skip
        launch = Launch(
            id=request.id, scenario=request.scenario, pass_=request.pass_, window=request.window,
            status=Status.COMPLETED, ranks=ranks, started="2026-01-01T00:00:00Z",
        )  # fmt: skip
        (request.directory / LAUNCH).write_bytes(to_pretty_json(launch))
        return launch

    monkeypatch.setattr(lab.launcher, "run", run, raising=False)
    return seen


def test_on_a_cpu_one_launch_checks_and_records(lab, make, sweeps: list[str]) -> None:
    """Five launches that nothing is judged by would cost the smoke tier a minute an operation; and it has no
    diagnostic pass, whose FLOPs and losses are not there."""
    campaign = lab.open(KEY, machine=make.CPU)
    judgement = campaign.judge(parse_key(KEY))
    assert sweeps == [f"{KEY}.timed-1"]
    assert judgement.verdict is Verdict.PASS
    assert campaign.run.measurements(KEY, Pass.TIMED)[0].number("latency_1kib") == 1e-4


def test_a_wrong_result_comes_with_what_repeats_it(lab, make, sweeps: list[str]) -> None:
    """A broken check was looked for in the diagnostic launch, which a collective does not have."""
    sweeps.append("wrong")
    campaign = lab.open(KEY, machine=make.CPU)
    judgement = campaign.judge(parse_key(KEY))
    assert judgement.verdict is Verdict.REGRESSION
    assert "1 wrong at 1kib on rank 1" in judgement.because
    assert campaign.evidence(parse_key(KEY)).repro is not None
