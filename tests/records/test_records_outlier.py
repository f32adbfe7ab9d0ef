"""Who is worse than all others, and whom all others wait for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records.outlier import late

PARTS = ("compute_time", "communication_time", "exposed_communication", "host_gap")

HEALTHY = ((73.1, 26.2, 2.4, 1.9), (72.3, 19.7, 2.0, 3.1))
SECOND_SLOWED = ((76.9, 43.7, 3.3, 2.2), (73.0, 19.6, 2.0, 7.3))
"""Parts of a traced step of DDP on two H200s, ms: as it is, and with 5 % more work on the second rank, which computes
for less time than the first: kernels of NCCL that wait hold multiprocessors."""
EXPERTS = ((60.4, 6.4, 3.5, 0.7), (60.1, 6.8, 3.9, 0.7))
"""Of experts split over two H200s, nobody slowed."""


def columns(*ranks: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    return dict(zip(PARTS, ([1e-3 * value for value in values] for values in zip(*ranks, strict=True)), strict=True))


@pytest.mark.parametrize(
    ("ranks", "rank"),
    [
        (HEALTHY, None),
        (EXPERTS, None),
        (SECOND_SLOWED, 1),
        (SECOND_SLOWED[::-1], 0),
        ((SECOND_SLOWED[0],) * 3 + SECOND_SLOWED[1:], 3),
        (((80, 20, 10, 10), (84, 16, 6, 10)), 1),  # nothing overlaps: what it computes longer the other one waits
        (((80, 20, 10, 10), (82, 18, 8, 10)), None),
        (((80, 20, 10, 10), (80, 10, 2, 18)), 1),  # its host is slow
        (((80, 20, 10, 10), (90, 20, 10, 0)), None),  # it computes longer, and nobody waits
        (((80, 40, 10, 10), (80, 20, 10, 10), (80, 20, 10, 10)), None),  # two that are waited for are nobody
        (((80, 0, 0, 10),), None),
    ],
)
def test_who_is_waited_for(ranks: tuple[tuple[float, ...], ...], rank: int | None) -> None:
    """A trace on two H200s named the rank that waited: it computed 5 % longer beside its own waiting collectives."""
    found = late(columns(*ranks))
    assert (None if found is None else found.rank) == rank


def test_parts_of_some_ranks_alone_say_nothing() -> None:
    """A record of another version ended the diagnosis."""
    assert late(columns(*SECOND_SLOWED) | {"exposed_communication": ()}) is None
    assert late({"communication_time": (0.04, 0.02)}) is None


def test_what_is_told_of_it() -> None:
    """Seconds of communication of the others and its own, and its compute time, which speaks against it here."""
    found = late(columns(*SECOND_SLOWED))
    assert found is not None
    assert (found.others_s, found.own_s) == (pytest.approx(0.0437), pytest.approx(0.0196))
    assert found.by == pytest.approx(73.0 / 76.9 - 1)


parts = st.tuples(st.floats(1, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))


@given(ranks=st.lists(parts, min_size=2, max_size=9))
def test_nobody_waits_for_one_that_waits_itself(ranks: list[tuple[float, ...]]) -> None:
    """Whatever else a trace says, the one that arrives last has the shortest collectives."""
    found = late(columns(*ranks))
    assert found is None or found.own_s == min(1e-3 * rank[1] for rank in ranks)
