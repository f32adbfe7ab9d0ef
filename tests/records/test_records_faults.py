"""Reading of injected faults."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.records.faults import (
    LEAK,
    SHARES,
    STEPPED,
    describe_fault,
    format_fault,
    parse_fault,
    refuse_absent_step,
)
from pytest_charllm.records.launch import Fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slowdown=0.05", Fault(name="slowdown", value=0.05)),
        ("slowdown=0.1,rank=1", Fault(name="slowdown", value=0.1, rank=1)),
        ("hang", Fault(name="hang")),
        ("hang=3", Fault(name="hang", value=3.0)),
        ("early-exit,rank=0", Fault(name="early-exit", rank=0)),
        ("nan=2,rank=1", Fault(name="nan", value=2.0, rank=1)),
    ],
)
def test_reads_what_the_help_promises(text: str, fault: Fault) -> None:
    """A rank of 0 must not read as "every rank"."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sleep=1", "known faults: slowdown"),
        ("slowdown", "share"),
        ("slowdown=0", "share"),
        ("slowdown=-0.1", "share"),
        ("slowdown=nan", "share"),
        ("slowdown=5%", "share"),
        ("slowdown=50", "share"),
        ("hang=1.5", "whole number"),
        ("crash=-1", "whole number"),
        ("host-stall", "share"),
        ("memory=0", "share"),
        ("leak=1.5", "number of objects"),
        ("leak=0", "number of objects, whole and from 1"),
        ("lost-overlap=0.1", "takes no value"),
        ("crash,rank=x", "NAME"),
        ("crash,node=1", "NAME"),
        ("", "NAME"),
    ],
)
def test_bad_faults_say_what_to_write(text: str, says: str) -> None:
    """A fault that is not applied as asked would let a drill pass for the wrong reason."""
    with pytest.raises(BadInput, match=says):
        parse_fault(text)


@given(
    st.sampled_from([*STEPPED, LEAK]),
    st.none() | st.integers(1, 10_000).map(float),
    st.none() | st.integers(0, 4096),
)
def test_round_trip(name: str, value: float | None, rank: int | None) -> None:
    """The rerun line of a failure is printed by `format_fault` and must ask for the same fault."""
    fault = Fault(name=name, value=value, rank=rank)
    assert parse_fault(format_fault(fault)) == fault


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (("host-stall", 0.1, 0.102), "host-stall: 10.0 % requested, 10.2 % achieved"),
        (("memory", 0.25, None), "memory: 25.0 % requested, achieved not known"),
        (("leak", None, 100.0), "leak: 100 objects a step requested, 100 achieved"),
        (("lost-overlap", None, 0.123), "lost-overlap: reductions took 12.3 % of the rest of a step"),
        (("lost-overlap", None, None), "lost-overlap"),
        (("hang", 3.0, None), "hang at step 3"),
    ],
)
def test_told_in_its_own_unit(fault: tuple[str, float | None, float | None], told: str) -> None:
    """A hundred objects are no share of a step."""
    assert describe_fault(*fault) == told


def test_a_step_behind_the_window_is_refused() -> None:
    """The fault would never happen. One that concerns all steps has a value that is no step."""
    for text in ("hang=23", "early-exit", "leak=500", "slowdown=0.1"):
        refuse_absent_step(parse_fault(text), 24)
    with pytest.raises(BadInput, match="fault crash=24,rank=1: the window has only steps 0 to 23"):
        refuse_absent_step(parse_fault("crash=24,rank=1"), 24)
    with pytest.raises(BadInput, match="fault early-exit: the window has only steps 0 to 0"):
        refuse_absent_step(parse_fault("early-exit"), 1)


@given(st.sampled_from(SHARES), st.floats(0.001, 10.0), st.none() | st.integers(0, 64))
def test_round_trip_of_a_share(name: str, share: float, rank: int | None) -> None:
    """Shares survive to the six digits that are printed."""
    again = parse_fault(format_fault(Fault(name=name, value=share, rank=rank)))
    assert again.value == pytest.approx(share, rel=1e-5)
    assert again.rank == rank
