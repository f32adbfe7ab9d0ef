"""The strict checks of the diagnostic pass: each must turn red for exactly its own fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.measure.checks import checks, counts
from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import Collective, Launch, Pass, Reference, Validity
from pytest_charllm.scenario import Layout, Options, Precision, Scenario, Sharding, Training
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import parameters, shape_of
from pytest_charllm.scenario.traffic import collectives

LOSSES = (10.4, 10.3, 10.2)
NORMS = (2.5, 2.4, 2.3)


def diagnostic(make: SimpleNamespace, scenario: Scenario, **changes: Any) -> Launch:
    """A faultless diagnostic launch of two ranks, with `changes` on rank 1."""
    seen = tuple(Collective(op=p.op, axis=p.axis, count=p.count, bytes=p.bytes) for p in collectives(scenario))
    plain: dict[str, Any] = {
        "pass_": Pass.DIAGNOSTIC,
        "steps": None,
        "window": None,
        "parameters": parameters(shape_of(scenario)),
        "losses": LOSSES,
        "grad_norms": NORMS,
        "collectives": seen,
        "flops_per_step": hardware_flops_per_step(scenario),
    }
    ranks = (
        make.report(0, 2, **plain, reference=Reference(losses=LOSSES, grad_norms=NORMS)),
        make.report(1, 2, **(plain | changes)),
    )
    return make.launch(ranks, pass_=Pass.DIAGNOSTIC, scenario=scenario)


@pytest.fixture(params=[Sharding.NONE, Sharding.FSDP], ids=["ddp", "fsdp"])
def fp32(request: pytest.FixtureRequest) -> Scenario:
    return Scenario(
        work=Training(model="llama3-1b", layers=2, microbatch=1),
        layout=Layout(dp=2, sharding=request.param),
        options=Options(precision=Precision.FP32),
    )


def failing(launch: Launch) -> dict[str, Any]:
    return {check.name: check for check in checks(launch) if not check.ok}


def test_a_traced_step_is_counted(make: SimpleNamespace) -> None:
    """GPU tiers have no diagnostic pass: there a step that does less read as an improvement. No parity there, and no
    check where the engine or the memory left nothing to count."""
    scenario = parse_key("llama3-1b.2L.dp2+fsdp.mb1")

    def traced(**changes: Any) -> dict[str, bool]:
        launch = diagnostic(make, scenario)
        ranks = tuple(replace(rank, losses=(), grad_norms=(), reference=None, **changes) for rank in launch.ranks)
        launch = replace(launch, pass_=Pass.TRACED, ranks=ranks)
        measurement = measure(launch, None, make.machine(("GPU-0", "GPU-1")))
        assert measurement.workload.get("collectives", "") == ("" if changes else measurement.workload["collectives"])
        return {check.name: check.ok for check in measurement.checks}

    whole = dict.fromkeys(("parameters", "FLOPs", "collective count", "collective bytes"), True)
    assert traced() == whole
    assert traced(collectives=()) == whole | {"collective count": False, "collective bytes": False}
    assert traced(flops_per_step=None, collectives=()) == {}


@pytest.mark.parametrize(
    ("key", "pass_", "reductions", "green"),
    [
        ("llama3-1b.dp2.mb1", Pass.TRACED, 50, True),  # as on two H200s; 66 are predicted of uncompiled blocks
        ("llama3-1b.dp2.mb1", Pass.TRACED, 147, False),
        ("llama3-1b.dp2.mb1", Pass.DIAGNOSTIC, 50, False),
        ("llama3-1b.dp2.mb1.eager", Pass.TRACED, 50, False),
    ],
)
def test_buckets_of_compiled_blocks_are_the_compilers(
    make: SimpleNamespace, key: str, pass_: Pass, reductions: int, green: bool
) -> None:
    """A night's trace called a healthy step wrong; a reduction a parameter (DeepSpeed#7415) must still be."""
    launch = diagnostic(make, parse_key(key))
    seen = tuple(replace(row, count=reductions) if row.axis == "dp" else row for row in launch.ranks[0].collectives)
    ranks = tuple(replace(rank, collectives=seen) for rank in launch.ranks)
    found = {check.name: check.ok for check in counts(replace(launch, pass_=pass_, ranks=ranks))}
    assert (found["collective count"], found["collective bytes"]) == (green, True)


def test_an_engines_own_timers_are_told_and_not_judged(make: SimpleNamespace) -> None:
    """A step time of the diagnostic pass, which waits for the device all the time, must not read as one."""
    launch = diagnostic(make, parse_key("tiny-llama.dp2+zero1.mb2.fp32.eager.deepspeed"))
    timed = replace(launch.ranks[0], parts_s={"forward": 0.0123, "update": 0.25})
    measurement = measure(replace(launch, ranks=(timed, launch.ranks[1])), None, make.machine())
    told = [finding.text for finding in measurement.findings if finding.kind == "step-parts"]
    assert told == ["by deepspeed's own timers, rank 0, in the diagnostic pass: forward 12.3 ms, update 250 ms"]
    assert measurement.number("step_time") is None


def test_faultless_launch_is_green(make: SimpleNamespace, fp32: Scenario) -> None:
    """All six checks are made, and their evidence is in the measurement."""
    measurement = measure(diagnostic(make, fp32), None, make.machine())
    assert measurement.validity is Validity.VALID
    assert {check.name: check.ok for check in measurement.checks} == dict.fromkeys(
        ("loss parity", "gradient norm parity", "parameters", "FLOPs", "collective count", "collective bytes"), True
    )
    assert measurement.number("throughput") is None


@pytest.mark.parametrize(
    ("precision", "gap", "red"),
    [("fp32", 5e-7, False), ("fp32", 2e-6, True), ("bf16", 4e-4, False), ("bf16", 6e-4, True)],
)
def test_loss_parity_has_a_limit_a_precision(
    make: SimpleNamespace, fp32: Scenario, precision: str, gap: float, red: bool
) -> None:
    """bf16 rounds a thousand times more than fp32: one limit would be blind for one or red for the other."""
    scenario = Scenario(work=fp32.work, layout=fp32.layout, options=Options(precision=Precision(precision)))
    wrong = failing(diagnostic(make, scenario, losses=(10.4, 10.3 * (1 + gap), 10.2)))
    assert set(wrong) == ({"loss parity"} if red else set())
    if red:
        assert "step 2 of 3 on rank 1" in wrong["loss parity"].detail


def test_wrong_gradient_scale_shows_in_the_norm(make: SimpleNamespace, fp32: Scenario) -> None:
    """AdamW hides a wrong gradient scale from the loss."""
    wrong = failing(diagnostic(make, fp32, grad_norms=tuple(2 * norm for norm in NORMS)))
    assert set(wrong) == {"gradient norm parity"}


@pytest.mark.parametrize("losses", [(), LOSSES[:2], (*LOSSES, 10.1)])
def test_missing_or_extra_losses_fail(make: SimpleNamespace, fp32: Scenario, losses: tuple[float, ...]) -> None:
    """Comparing only as far as both go would pass a rank that stopped early."""
    assert set(failing(diagnostic(make, fp32, losses=losses))) == {"loss parity"}


def test_no_reference_fails(make: SimpleNamespace, fp32: Scenario) -> None:
    """Nothing to compare with is no parity."""
    launch = diagnostic(make, fp32)
    launch = replace(launch, ranks=tuple(replace(report, reference=None) for report in launch.ranks))
    assert set(failing(launch)) == {"loss parity", "gradient norm parity"}


def test_other_workload_is_named(make: SimpleNamespace, fp32: Scenario) -> None:
    """A model that lost a layer is faster, and no speed test would complain."""
    wrong = failing(diagnostic(make, fp32, parameters=1000, flops_per_step=hardware_flops_per_step(fp32) * 11 // 10))
    assert set(wrong) == {"parameters", "FLOPs"}
    assert "on rank 1, +10.00 %" in wrong["FLOPs"].detail
    assert failing(diagnostic(make, fp32, flops_per_step=None))["FLOPs"].observed == "not reported"


def test_flops_are_those_of_the_attention_that_ran(make: SimpleNamespace, fp32: Scenario) -> None:
    """In fp32 on a GPU attention is not fused and does fewer products: the check was red by 1 % where all was well."""
    launch = diagnostic(make, fp32)
    fused, unfused = (hardware_flops_per_step(fp32, backend) for backend in ("flash", "math"))
    assert unfused < fused
    for backend, flops, red in (("math", unfused, False), ("math", fused, True), ("flash", unfused, True)):
        ranks = tuple(replace(rank, attention_backend=backend, flops_per_step=flops) for rank in launch.ranks)
        assert ("FLOPs" in failing(replace(launch, ranks=ranks))) is red


def test_extra_collective_is_named_with_its_axis(make: SimpleNamespace, fp32: Scenario) -> None:
    """Waiting is invisible to CPU time: an added all-gather has to be seen by its count and bytes."""
    seen = tuple(Collective(op=p.op, axis=p.axis, count=p.count, bytes=p.bytes) for p in collectives(fp32))
    extra = (*seen, Collective(op="all-to-all", axis="dp", count=3, bytes=12))
    wrong = failing(diagnostic(make, fp32, collectives=extra))
    assert set(wrong) == {"collective count", "collective bytes"}
    assert "all-to-all on dp, rank 1" in wrong["collective count"].detail
    assert (wrong["collective bytes"].expected, wrong["collective bytes"].observed) == ("0", "12")


def test_lost_collectives_fail(make: SimpleNamespace, fp32: Scenario) -> None:
    """No gradient reduction at all is the fastest and the worst."""
    assert set(failing(diagnostic(make, fp32, collectives=()))) == {"collective count", "collective bytes"}


def test_layout_without_a_prediction_says_so(make: SimpleNamespace) -> None:
    """A check that is silently not made reads like one that passed."""
    scenario = parse_key("mixtral-8x7b.2L.dp2+ep2+zero1.mb1.real-routing.deepspeed")
    plain = Scenario(work=scenario.work, layout=Layout(dp=2))
    launch = replace(diagnostic(make, plain), scenario=scenario)
    measurement = measure(launch, None, make.machine())
    assert not {"FLOPs", "collective count"} & {check.name for check in measurement.checks}
    assert [finding.kind for finding in measurement.findings] == ["unchecked", "unchecked"]
