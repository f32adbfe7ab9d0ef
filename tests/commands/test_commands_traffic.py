"""``pytest-charllm traffic``: predicted calls beside measured curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.main import main
from pytest_charllm.records import Launch, Pass, Phases, RankDevice, RankReport, Stack, Status, tier, to_pretty_json
from pytest_charllm.records.breakdown import AxisTime
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import parameters, shape
from pytest_charllm.store.run import RunDirectory

KEY = "p2p.dp2.upto4kib"


def with_launch(run: RunDirectory, key: str) -> None:
    """The record of the launch that was measured: it says which collective that was."""
    launch = Launch(
        id=f"{key}.timed-1", scenario=parse_key(key), pass_=Pass.TIMED, window=tier("smoke", False).window,
        status=Status.COMPLETED,
    )  # fmt: skip
    (run.launch_directory(key, Pass.TIMED, 1) / "launch.json").write_bytes(to_pretty_json(launch))


def test_pipelines_with_and_without_tensor_parallelism(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two layouts side by side is what the table is for; an axis without a curve must say so, not be left out."""
    run = gpu_run(key=KEY, values={"latency_1kib": 1e-5, "latency_4kib": 2e-5})
    with_launch(run, KEY)
    assert main(["traffic", "tiny-llama.pp2.mb1", "tiny-llama.tp2pp2.mb1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:7] == ["scenario", "axis", "operation", "ranks", "calls", "mean", "message"]
    sends = [line.split() for line in lines if " send " in line]
    assert [words[words.index("KiB") - 1 :][:7] for words in sends] == [
        ["64.0", "KiB", "0.205", "100", "%", "320", "us"],
        ["32.0", "KiB", "0.205", "100", "%", "160", "us"],
    ]
    assert sum("beyond the curve's 4kib" in line for line in lines) == 4, (
        "a curve of gloo's 4 MiB was held for all sizes"
    )
    assert any("all-gather" in line and "no curve of all-gather between" in line for line in lines)
    assert lines[-1] == f"rank 0, one step; curves of run {run.id} on h200-sxm 1x1: p2p between 2"


def test_traced_steps_are_held_against_the_curves(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """Curves alone say how fast calls could be, not how fast those of training were. Where one curve is missing there
    is no rate of all."""
    curve, keys = "all-reduce.dp2.upto4kib", ("tiny-llama.dp2.mb1", "tiny-llama.tp2.mb1")
    run = gpu_run(key=curve, values={"latency_1kib": 1e-5, "latency_4kib": 2e-5})
    with_launch(run, curve)
    for key in keys:
        traced = gpu_run(key=key, values={"communication_time": 0.1, "exposed_communication": 0.04})
        run.save_measurement(traced.measurements(key)[0], Pass.TRACED)
    assert main(["traffic", *keys, "--run", run.id]) == 0
    dp, tp = [line for line in capsys.readouterr().out.splitlines() if " traced " in line]
    assert dp.startswith(f"{keys[0]}: 100 ms of communication in a traced step, 40.0 ms of it exposed; ")
    in_turn_s = 2e-5 * 4 * parameters(shape("tiny-llama")) / 4096
    assert dp.endswith(f"; {1e3 * in_turn_s:.1f} ms by the curves, so {100 * in_turn_s / 0.1:.0f} % of their rate")
    assert tp == f"{keys[1]}: 100 ms of communication in a traced step, 40.0 ms of it exposed"


def test_links_are_held_against_the_calls_and_curves_may_be_another_runs(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """A night of training and one of collectives are two runs; and counts of calls do not say which way bytes went."""
    curves = gpu_run(key=KEY, values={"latency_1kib": 1e-5})
    with_launch(curves, KEY)
    run = gpu_run(key="llama3-1b.dp2.mb1", values={"link_bytes": 4.4053e9})
    assert main(["traffic", "llama3-1b.dp2.mb1", "--run", run.id, "--curves", curves.id]) == 0
    *_, links, _, last = capsys.readouterr().out.splitlines()
    assert links == (
        "llama3-1b.dp2.mb1: a device sends 4.405 GB a step by its links' counters, 4.417 GB by the calls as rings "
        "(-0.3 %)"
    )
    assert last == f"rank 0, one step; curves of run {curves.id} on h200-sxm 1x1: p2p between 2"


def traced(key: str, *times: AxisTime, **changes: Any) -> Launch:
    """Of two ranks, of which the second one has nothing to tell."""
    told = RankReport(
        nonce="n", rank=0, world_size=2, host="node", pid=1, pass_=Pass.TRACED, tokens_per_step=8192, software=Stack(),
        device=RankDevice(kind="cuda", name="NVIDIA H200"), phases=Phases(), axis_times=times,
    )  # fmt: skip
    plain = Launch(
        id=f"{key}.traced-1", scenario=parse_key(key), pass_=Pass.TRACED, window=tier("smoke", False).window,
        status=Status.COMPLETED, ranks=(told, replace(told, rank=1, axis_times=(), notes=("no time by axis: why",))),
    )  # fmt: skip
    return replace(plain, **changes)


def test_a_traced_step_is_told_by_axis(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two axes on the same cards are two rates, each against its own curve; what belongs to none has a line as well."""
    key, curve = "tiny-mixtral.dp2+ep2.mb1", "all-to-all.dp2.upto4kib"
    run = gpu_run(key=curve, values={"latency_1kib": 1e-5, "latency_4kib": 2e-5})
    with_launch(run, curve)
    launch = traced(
        key,
        AxisTime(axis="ep", op="all-to-all", calls=8, bytes=8 << 17, busy_ns=28_800_000, moving_ns=10_240_000),
        AxisTime(axis=None, op="Memcpy PtoP", calls=3, bytes=None, busy_ns=1_000, moving_ns=None),
    )
    (run.launch_directory(key, Pass.TRACED, 1) / "launch.json").write_bytes(to_pretty_json(launch))
    assert main(["traffic", key]) == 0
    told = capsys.readouterr().out.partition("rank 0, one traced step\n")[2].splitlines()
    assert told[0].split("  ", 1)[0] == "scenario"
    assert told[0].split()[-8:] == ["in", "kernels", "moving", "GB/s", "of", "the", "curve", "note"]
    (exchange,) = [line.split() for line in told if " ep " in line]
    assert exchange[exchange.index("ep"):][:13] == [
        "ep", "all-to-all", "8", "128", "KiB", "28.8", "ms", "10.2", "ms", "0.0512", "50", "%", "16",
    ]  # fmt: skip
    (copies,) = [line.split() for line in told if "Memcpy" in line]
    assert copies == ["none", "Memcpy", "PtoP", "3", "1.00", "us", "kernels", "of", "no", "call"]
    assert main(["traffic", key, "--rank", "1"]) == 0
    out = capsys.readouterr().out
    assert f"{key}: no time by axis: why" in out
    assert "one traced step" not in out


def test_a_key_that_is_none_is_one_line(
    gpu_run: Callable[..., RunDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback for a typing mistake."""
    gpu_run()
    assert main(["traffic", "llama3-1b"]) == 2
    assert "no mb<N>" in capsys.readouterr().err


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_that_there_is_not(rank: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its calls were made up, and printed like those of any other."""
    assert main(["traffic", "tiny-llama.pp2.mb1", "--rank", rank]) == 2
    assert f"--rank: tiny-llama.pp2.mb1 has ranks 0 to 1, asked {rank}" in capsys.readouterr().err
