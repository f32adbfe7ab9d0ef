"""What the links give: one operation between all ranks, from 1 KiB to 1 GiB, judged size by size.

Training's own traffic against these curves: `pytest-charllm traffic KEY`.
"""

import pytest

from pytest_charllm import scenarios

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "p2p")


def between(ranks: int) -> list[str]:
    return [f"{operation}.dp{ranks}" for operation in OPERATIONS]


@pytest.mark.smoke
@scenarios("all-reduce.dp2", "p2p.dp2", on="*:1x2")
@scenarios("all-reduce.dp4", "p2p.dp4", on="*:1x4")
@scenarios("all-reduce.dp8", "p2p.dp8", on="*:1x8")
def test_links(measured):
    measured.check()


@scenarios(*between(2), on=("*:1x2", "*:1x4", "*:1x8"))
@scenarios(*between(4), on=("*:1x4", "*:1x8"))
@scenarios(*between(8), on="*:1x8")
def test_node(measured):
    """Also between fewer ranks than the node has: the size of an axis's group."""
    measured.check()


@scenarios(*between(8), *between(16), on="*:2x8")
@scenarios(*between(8), *between(32), on="*:4x8")
@scenarios(*between(8), *between(64), on="*:8x8")
def test_nodes(measured):
    measured.check()


@pytest.mark.smoke
@scenarios("all-reduce.dp2.upto4mib", on="cpu:1x2", speed=False)
def test_gloo(measured):
    """Results are checked, times recorded."""
    measured.check()
