"""Collectives as work: the sizes of their messages, the key, and the bandwidth that a time comes to.

    key = op "." layout [".upto" SIZE]          all-reduce.dp8    p2p.dp2.upto4mib

One scenario is one operation over all ranks of a ``dp`` layout, swept over `SIZES` up to the largest message, which is
named where it is not 1 GiB: the curve is one measurement, and one baseline. Its metrics are those of `records.curve`.
"""

from __future__ import annotations

from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.scenario.layout import format_layout, parse_layout
from pytest_charllm.scenario.spec import LARGEST_MESSAGE, Collective, CollectiveOp, Layout, Scenario

SIZES = tuple(1024 * 4**power for power in range(11))
"""Bytes of a message, 1 KiB to 1 GiB: of the full tensor, before an operation splits it or after it has joined it."""

OPS = tuple(op.value for op in CollectiveOp)


def label(size: int) -> str:
    """``1kib``, ``64mib``, ``1gib``."""
    for unit, shift in (("gib", 30), ("mib", 20)):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return f"{size >> 10}kib"


_BY_LABEL = {label(size): size for size in SIZES}


def sizes_of(work: Collective) -> tuple[int, ...]:
    """The messages that a scenario sends, the smallest first."""
    return tuple(size for size in SIZES if size <= work.largest)


def bus_factor(op: str, ranks: int) -> float:
    """By what the algorithm's bandwidth, bytes over time, is multiplied to be that of the busiest link.

    It makes worlds of different size comparable: every rank of an optimal algorithm must move that share of the full
    tensor, whatever the topology. Factors of NVIDIA's nccl-tests (doc/PERFORMANCE.md): all-reduce ``2 (n - 1) / n``;
    all-gather, reduce-scatter and all-to-all ``(n - 1) / n``; send and receive 1.
    """
    if op == CollectiveOp.P2P:
        return 1.0
    return (2 if op == CollectiveOp.ALL_REDUCE else 1) * (ranks - 1) / ranks


def collective_key(work: Collective, layout: Layout) -> str:
    """Raises `BadInput` for a size that is not swept, or a layout without a text."""
    if work.largest not in SIZES:
        raise BadInput(f"{work.op}: largest is {work.largest} bytes, it must be one of {', '.join(_BY_LABEL)}")
    tokens = [work.op.value, format_layout(layout)]
    if work.largest != LARGEST_MESSAGE:
        tokens.append(f"upto{label(work.largest)}")
    return ".".join(tokens)


def parse_collective(key: str) -> Scenario:
    """Inverse of `collective_key`. Raises `BadInput` naming the token that cannot be read, or the canonical key."""
    op, *tokens = key.split(".")
    layout, largest = Layout(), LARGEST_MESSAGE
    for token in tokens:
        if token.startswith("upto"):
            size = token.removeprefix("upto")
            if size not in _BY_LABEL:
                meant = did_you_mean(size, list(_BY_LABEL))
                raise BadInput(f"token {token!r}: {meant}sizes are {', '.join(_BY_LABEL)}")
            largest = _BY_LABEL[size]
        else:
            layout = parse_layout(token)
    scenario = Scenario(work=Collective(op=CollectiveOp(op), largest=largest), layout=layout)
    if key != (written := collective_key(scenario.work, layout)):  # type: ignore[arg-type]
        raise BadInput(f"not the canonical form, write {written!r}")
    return scenario
