"""Collectives as scenarios: their keys, what is asked of them before a launch, and what a time comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario import Collective, CollectiveOp, Layout, Options, Recompute, Scenario
from pytest_charllm.scenario.collective import SIZES, bus_factor, label, sizes_of
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key

MIB = 1 << 20


def collective(op: CollectiveOp = CollectiveOp.ALL_REDUCE, dp: int = 8, largest: int = SIZES[-1]) -> Scenario:
    return Scenario(work=Collective(op=op, largest=largest), layout=Layout(dp=dp))


@given(op=st.sampled_from(CollectiveOp), dp=st.integers(1, 4096), largest=st.sampled_from(SIZES))
def test_a_key_reads_back_as_what_it_was_written_from(op: CollectiveOp, dp: int, largest: int) -> None:
    """A key is a file name and a baseline's identity: two curves under one of them would gate each other."""
    scenario = collective(op, dp, largest)
    assert parse_key(scenario.key) == scenario
    assert scenario.engine == "collective"


def test_keys_are_written_down() -> None:
    """They name baselines: a key that changes between versions loses everything on record."""
    assert collective().key == "all-reduce.dp8"
    assert collective(CollectiveOp.P2P, 2, 4 * MIB).key == "p2p.dp2.upto4mib"


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("all-reduce.dp8.upto1gib", "write 'all-reduce.dp8'"),
        ("all-reduce.dp8.upto3mib", "sizes are 1kib, 4kib"),
        ("p2p.upto4mib.dp2", "write 'p2p.dp2.upto4mib'"),
        ("p2p.dp2.mb1", "not an axis"),
    ],
)
def test_other_spellings_are_refused(key: str, complaint: str) -> None:
    """One scenario under two keys would have two baselines, and each half of the history."""
    with pytest.raises(BadInput, match=complaint):
        parse_key(key)


def test_a_size_that_is_not_swept_has_no_key() -> None:
    """It would read as its whole sweep and stop short of it."""
    with pytest.raises(BadInput, match="largest is 5 bytes"):
        _ = collective(largest=5).key


def test_sizes_go_from_a_kibibyte_to_a_gibibyte() -> None:
    """Regressions of NCCL have been seen at 1 KiB, at 1 MiB and at the largest messages alone."""
    assert [label(size) for size in SIZES] == [
        "1kib", "4kib", "16kib", "64kib", "256kib", "1mib", "4mib", "16mib", "64mib", "256mib", "1gib",
    ]  # fmt: skip
    assert sizes_of(Collective(op=CollectiveOp.P2P, largest=4 * MIB)) == SIZES[:7]


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [("all-reduce", 2, 1.0), ("all-reduce", 8, 1.75), ("all-gather", 8, 0.875), ("reduce-scatter", 4, 0.75),
     ("all-to-all", 4, 0.75), ("p2p", 8, 1.0)],
)  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(op: str, ranks: int, factor: float) -> None:
    """A factor of another convention makes every number here incomparable with what people know of their links."""
    assert bus_factor(op, ranks) == factor


@pytest.mark.parametrize(
    ("scenario", "rule"),
    [
        (collective(dp=8), None),
        (collective(dp=4), None),
        (collective(dp=1), "dp"),
        (collective(dp=16), "world"),
        (Scenario(work=Collective(op=CollectiveOp.P2P), layout=Layout(tp=8)), "engine"),
        (Scenario(work=Collective(op=CollectiveOp.P2P), layout=Layout(dp=8), engine="deepspeed"), "engine"),
        (
            Scenario(
                work=Collective(op=CollectiveOp.P2P), layout=Layout(dp=8), options=Options(recompute=Recompute.FULL)
            ),
            "engine",
        ),
    ],
)
def test_what_cannot_be_launched_says_which_rule(scenario: Scenario, rule: str | None) -> None:
    """Rules of training divide by a model that is not there."""
    broken = infeasible(scenario, CATALOGUE["h200-sxm"], parse_assume("h200:1x8"))
    assert (broken.rule if broken else None) == rule


def test_a_collective_trains_nothing() -> None:
    """FLOPs or memory of it would be made up: whoever asks gets a line instead of a number."""
    with pytest.raises(BadInput, match="trains nothing"):
        _ = collective().training
