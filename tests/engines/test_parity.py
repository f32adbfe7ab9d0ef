"""The parity matrix: every layout and optimization trains like one fp32 process and does the work that is on paper."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pytest_charllm.records import RankReport, RankRequest
from pytest_charllm.scenario import Precision, Scenario
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import trainable_parameters
from pytest_charllm.scenario.traffic import collectives

TABLE = tomllib.loads(Path(__file__).with_name("parity.toml").read_text())
CASES = [key for keys in TABLE["cases"].values() for key in keys]
MUTANTS = TABLE["mutants"]

LIMITS = {Precision.FP32: (1e-6, 1e-5), Precision.BF16: (5e-4, 2e-2)}
"""Relative limits of the loss and of the gradient norm."""

RequestOf = Callable[[Scenario], RankRequest]


@pytest.fixture(scope="module")
def answers(train_cases, request_of: RequestOf) -> Mapping[str, list[RankReport]]:
    """Every rank's report of every case and mutant. All cases of one world size share a launch."""
    by_world: dict[int, dict[str, tuple[str, RankRequest]]] = {}
    for name, key, mutant in [(key, key, "") for key in CASES] + [
        (name, entry["key"], name) for name, entry in MUTANTS.items()
    ]:
        scenario = parse_key(key)
        by_world.setdefault(scenario.layout.world, {})[name] = (mutant, request_of(scenario))
    reports: dict[str, list[RankReport]] = {}
    for world, cases in by_world.items():
        reports |= train_cases(world, cases)
    return reports


def differences(report: RankReport) -> tuple[float, float]:
    """The largest relative difference from the reference: of the losses, of the gradient norms."""
    assert report.reference is not None
    pairs = ((report.losses, report.reference.losses), (report.grad_norms, report.reference.grad_norms))
    loss, norm = (max(abs(a / b - 1) for a, b in zip(here, there, strict=True)) for here, there in pairs)
    return loss, norm


def counted(report: RankReport) -> list[tuple[str, str, int, int]]:
    return [(each.op, each.axis, each.count, each.bytes) for each in report.collectives]


@pytest.mark.parametrize("key", CASES)
def test_parity(answers: Mapping[str, list[RankReport]], key: str) -> None:
    """A layout, accumulation, recompute or precision that changes what is learnt."""
    first, *others = answers[key]
    loss_limit, norm_limit = LIMITS[parse_key(key).options.precision]
    loss, norm = differences(first)
    assert len(set(first.losses)) == len(first.grad_norms) == 5
    assert loss <= loss_limit
    assert norm <= norm_limit
    for other in others:
        assert (other.losses, other.grad_norms) == (first.losses, first.grad_norms), "ranks disagree"
        assert other.reference is None, "only rank 0 trains the reference"


@pytest.mark.parametrize("key", CASES)
def test_work_is_that_on_paper(answers: Mapping[str, list[RankReport]], key: str) -> None:
    """A lost or doubled collective or product, by a change of ours or of torch's."""
    scenario = parse_key(key)
    for report in answers[key]:
        assert report.flops_per_step == hardware_flops_per_step(scenario)
        assert report.parameters == trainable_parameters(scenario)


@pytest.mark.parametrize("key", CASES)
def test_traffic_is_that_on_paper(answers: Mapping[str, list[RankReport]], key: str) -> None:
    """A lost or doubled collective, or one over the wrong ranks."""
    for report in answers[key]:
        assert counted(report) == list(map(tuple, collectives(parse_key(key), report.rank)))


@pytest.mark.parametrize("name", MUTANTS)
def test_parity_or_traffic_notices(answers: Mapping[str, list[RankReport]], name: str) -> None:
    """Checks that a known bug of each strategy passes are no checks."""
    report, shows_in = answers[name][0], MUTANTS[name]["shows_in"]
    loss, norm = differences(report)
    if shows_in == "collectives":
        assert counted(report) != list(map(tuple, collectives(parse_key(MUTANTS[name]["key"]))))
    else:
        loss_limit, norm_limit = LIMITS[parse_key(MUTANTS[name]["key"]).options.precision]
        assert loss > 3 * loss_limit if shows_in == "losses" else norm > 3 * norm_limit
