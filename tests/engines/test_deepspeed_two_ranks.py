"""DeepSpeed on two gloo ranks: it trains like the native engine, does the work on paper, and known bugs show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median

import msgspec
import pytest

from pytest_charllm.measure.checks import GRAD_NORM_LIMIT, LOSS_LIMIT
from pytest_charllm.records import Pass, RankReport, RankRequest, from_json, tier
from pytest_charllm.scenario import Scenario, Sharding
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import parameters, shape_of
from pytest_charllm.scenario.traffic import collectives

ZERO = "tiny-llama.2L.dp2{}.mb2.seq32.fp32.eager"
PREDICTED = [
    ZERO.format("") + ".deepspeed",
    ZERO.format("+zero1") + ".deepspeed",
    ZERO.format("+zero2") + ".deepspeed",
    ZERO.format("+zero3") + ".deepspeed",
    "tiny-llama.2L.dp2.mb2.gb8.seq32.eager.deepspeed",
    "tiny-llama.2L.dp2+zero1.mb2.gb8.seq32.eager.no-overlap.reduce200000.deepspeed",
    "tiny-gpt.2L.dp2+zero2.mb1.gb4.seq31.recompute-full.fp32.eager.reduce300000.deepspeed",
    "tiny-gpt.2L.dp2+zero3.mb1.gb4.seq31.recompute-full.fp32.eager.reduce200000.live0.deepspeed",
    "tiny-llama.2L.dp2+zero3.mb2.seq32.recompute-selective.eager.no-overlap.prefetch200000.live500000.deepspeed",
]
PIPELINED = "tiny-llama.2L.pp2.mb2.gb8.seq32.fp32.eager.deepspeed"
MIXTURE = "tiny-mixtral.2L.dp2+ep2+zero1.mb2.seq32.fp32.eager.real-routing.deepspeed"
SOUND = [*PREDICTED, PIPELINED, MIXTURE]
NATIVE = ZERO.format("")

SMALL_BUCKETS = "tiny-llama.2L.dp2+{}.mb2.seq32.fp32.eager.reduce200000.deepspeed"
MANY_SMALL = "tiny-deep.dp2+zero2.mb1.fp32.eager.deepspeed"
FEW_LARGE, GATHERING = (ZERO.format(f"+zero{stage}") + ".deepspeed" for stage in (2, 3))
AGAIN = "parameters_gathered_again"
BUGS = {
    "never-empty": ("bucket_never_empty", SMALL_BUCKETS.format("zero3")),
    "never-empty-zero2": ("bucket_never_empty", SMALL_BUCKETS.format("zero2")),
    "gathered-again": (AGAIN, GATHERING),
    "gathered-again-zero2": (AGAIN, FEW_LARGE),
    "too-early": ("bucket_used_again_too_early", ZERO.format("+zero2") + ".deepspeed"),
    "too-early-zero3": ("bucket_used_again_too_early", ZERO.format("+zero3") + ".deepspeed"),
}
COUNTING = "parameters_counted_at_every_gradient"
TIMED = {
    "many-clean": ("", MANY_SMALL),
    "many-counted": (COUNTING, MANY_SMALL),
    "few-clean": ("", FEW_LARGE),
    "few-counted": (COUNTING, FEW_LARGE),
    "few-gathered": (AGAIN, FEW_LARGE),
    "gathering-clean": ("", GATHERING),
    "gathering-gathered": (AGAIN, GATHERING),
}
WINDOW = msgspec.structs.replace(tier("smoke", is_cpu=True).window, min_steps=8, warmup_steps=2)
LONGER = msgspec.structs.replace(WINDOW, min_steps=24)
"""Medians of so many steps scattered by 1 to 2 % on two cores with a load of 8; of eight steps, by 5 %."""

Answers = Mapping[str, list[RankReport]]


@pytest.fixture(scope="module")
def answers(
    run_ranks: Callable[[Path, Path, int], None],
    request_of: Callable[[Scenario], RankRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Answers:
    """Both ranks' reports of every case, trained one after the other in a single pair of processes. DeepSpeed leaves
    something behind in them: ZeRO 3 its linear layer, and a pipeline its groups, after which there are no experts."""
    folder = tmp_path_factory.mktemp("deepspeed")
    cases = [(key, "", request_of(parse_key(key))) for key in (NATIVE, *PREDICTED, MIXTURE)]
    for name, (bug, key) in BUGS.items():
        cases.append((name, bug, msgspec.structs.replace(request_of(parse_key(key)), diagnostic_steps=2)))
    for name, (bug, key) in TIMED.items():
        window = WINDOW if key == MANY_SMALL else LONGER
        asked = msgspec.structs.replace(request_of(parse_key(key)), pass_=Pass.TIMED, window=window)
        cases.append((name, bug, asked))
    cases.sort(key=lambda case: case[2].scenario.layout.sharding is Sharding.ZERO3)
    cases.append((PIPELINED, "", request_of(parse_key(PIPELINED))))
    encoded = [(name, bug, msgspec.to_builtins(asked)) for name, bug, asked in cases]
    (folder / "cases.json").write_text(json.dumps(encoded))
    run_ranks(Path(__file__).with_name("deepspeed_program.py"), folder, 2)
    return {
        name: [from_json((path := folder / f"{name}.{rank}.json").read_bytes(), RankReport, path) for rank in range(2)]
        for name, _, _ in cases
    }


def apart(here: tuple[float, ...], there: tuple[float, ...]) -> float:
    """The largest relative difference."""
    return max(abs(a / b - 1) for a, b in zip(here, there, strict=True))


def differences(report: RankReport) -> tuple[float, float]:
    """From the reference: of the losses, of the gradient norms."""
    assert report.reference is not None
    return apart(report.losses, report.reference.losses), apart(report.grad_norms, report.reference.grad_norms)


def counted(report: RankReport) -> list[tuple[str, str, int, int]]:
    return [(each.op, each.axis, each.count, each.bytes) for each in report.collectives]


def on_paper(key: str, rank: int = 0) -> list[tuple[str, str, int, int]]:
    return [tuple(row) for row in collectives(parse_key(key), rank)]


@pytest.mark.parametrize("key", SOUND)
def test_trains_like_one_fp32_process(answers: Answers, key: str) -> None:
    """A stage, bucket, recomputation, pipeline or expert group that changes what is learnt."""
    first, second = answers[key]
    precision = parse_key(key).options.precision
    loss, norm = differences(first)
    assert loss <= LOSS_LIMIT[precision]
    assert norm <= GRAD_NORM_LIMIT[precision]
    assert len(set(first.losses)) == len(first.grad_norms) == 5
    assert (second.losses, second.grad_norms) == (first.losses, first.grad_norms)


@pytest.mark.parametrize("sharding", ["", "+zero1", "+zero2", "+zero3"])
def test_the_engines_learn_alike(answers: Answers, sharding: str) -> None:
    """Other weights, tokens or learning rate than the native engine's: the two could not be read side by side."""
    here, there = answers[ZERO.format(sharding) + ".deepspeed"][0], answers[NATIVE][0]
    assert apart(here.losses, there.losses) <= 1e-6
    assert (here.parameters, here.tokens_per_step, here.attention_backend) == (
        there.parameters, there.tokens_per_step, there.attention_backend,
    )  # fmt: skip
    assert there.software.deepspeed is None or there.software == here.software


@pytest.mark.parametrize("key", [*PREDICTED, PIPELINED])
def test_does_the_collectives_on_paper(answers: Answers, key: str) -> None:
    """A change of what DeepSpeed sends: its own log against the model of its buckets and gathers."""
    for report in answers[key]:
        assert counted(report) == on_paper(key, report.rank)


@pytest.mark.parametrize("key", [*PREDICTED, PIPELINED])
def test_does_the_flops_on_paper(answers: Answers, key: str) -> None:
    """Products that ZeRO's hooks or the pipeline repeat or leave out."""
    for report in answers[key]:
        assert report.flops_per_step == hardware_flops_per_step(parse_key(key))


@pytest.mark.parametrize("key", SOUND)
def test_counts_the_whole_model(answers: Answers, key: str) -> None:
    """A stage, a shard or a rank's own experts taken for the model."""
    assert {report.parameters for report in answers[key]} == {parameters(shape_of(parse_key(key)))}


def test_one_parameter_a_reduction_is_noticed(answers: Answers) -> None:
    """DeepSpeed#7415, by count: it learns the same, sends as many bytes, and ZeRO 2 is not concerned."""
    report, sibling = answers["never-empty"][0], answers["never-empty-zero2"][0]
    expected = {(op, axis): (count, size) for op, axis, count, size in on_paper(SMALL_BUCKETS.format("zero3"))}
    seen = {(op, axis): (count, size) for op, axis, count, size in counted(report)}
    assert differences(report)[1] <= GRAD_NORM_LIMIT[parse_key(NATIVE).options.precision]
    assert seen["reduce-scatter", "dp"][0] > 1.5 * expected["reduce-scatter", "dp"][0]
    assert seen["reduce-scatter", "dp"][1] == expected["reduce-scatter", "dp"][1]
    assert counted(sibling) == on_paper(SMALL_BUCKETS.format("zero2"))


def cost(reports: list[RankReport]) -> float:
    """Gate A's measure of these ranks, by the median step."""
    return fmean(
        median(
            step / sum(each)
            for step, *each in zip(report.steps.cpu_s, *(kind.cpu_s for kind in report.calibration), strict=True)
        )
        for report in reports
        if report.steps is not None
    )


def test_an_extra_gather_is_noticed(answers: Answers) -> None:
    """DeepSpeed#7499 had ZeRO 3 alone fall behind: the ratio of its steps to ZeRO 2's, by Gate A. It grew by 8 to 16 %
    where it was measured, and scatters by some 3 % on busy cores, so what is held here is that it grows."""
    clean = cost(answers["gathering-clean"]) / cost(answers["few-clean"])
    slower = cost(answers["gathering-gathered"]) / cost(answers["few-gathered"])
    assert slower > clean


def test_what_an_extra_gather_sends_is_noticed(answers: Answers) -> None:
    """The same bug, exactly: what ZeRO 3 gathers, held against what ZeRO 2 does for as many parameters."""

    def gathered(name: str) -> int:
        return sum(each.bytes for each in answers[name][0].collectives if each.op == "all-gather")

    assert gathered(GATHERING) == gathered(FEW_LARGE)
    assert gathered("gathered-again") > 1.5 * gathered("gathered-again-zero2")
    assert counted(answers["gathered-again"][0]) != on_paper(GATHERING)
    assert counted(answers["gathered-again-zero2"][0]) == on_paper(FEW_LARGE)


def test_memory_used_again_too_early_is_noticed(answers: Answers) -> None:
    """DeepSpeed#7965, by parity: sums that are overwritten before they are read, in ZeRO 2 alone."""
    limit = GRAD_NORM_LIMIT[parse_key(NATIVE).options.precision]
    assert differences(answers["too-early"][0])[1] > 100 * limit
    assert differences(answers["too-early-zero3"][0])[1] <= limit


def test_work_at_every_gradient_is_noticed(answers: Answers) -> None:
    """DeepSpeed#7885, by Gate A: quadratic in the number of parameters, so a model of many small ones is red where one
    of few large ones stays green. It was 5 % on cores that other tests kept busy, where 8 are called, so what is held
    here is that it is more than that of few."""
    many = cost(answers["many-counted"]) / cost(answers["many-clean"])
    few = cost(answers["few-counted"]) / cost(answers["few-clean"])
    print(f"many {many - 1:+.1%}, few {few - 1:+.1%}")
    assert many > few


@pytest.mark.parametrize("key", [*PREDICTED, MIXTURE])
def test_its_own_timers_say_where_a_step_goes(answers: Answers, key: str) -> None:
    """A part that is not there, or a microbatch taken for the step. In 0.19.8 they raise in a pipeline."""
    for report in answers[key]:
        assert list(report.parts_s) == ["forward", "backward", "reduction", "update"]
        assert 0 < report.parts_s["reduction"] < report.parts_s["backward"]
        assert all(0 < seconds < 10 for seconds in report.parts_s.values())
    assert not answers[PIPELINED][0].parts_s
    assert not answers[NATIVE][0].parts_s
    assert not answers["few-clean"][0].parts_s


def test_a_timed_report_is_that_of_the_native_engine(answers: Answers) -> None:
    """The same loop measures both: every step of the window, and the calibrations beside it."""
    for report in answers["few-clean"]:
        assert report.steps is not None
        assert len(report.steps.wall_s) == LONGER.min_steps
        assert [each.kind for each in report.calibration] == ["matmul", "decoder"]
        assert report.collectives == report.losses == ()
        assert report.software.deepspeed is not None
