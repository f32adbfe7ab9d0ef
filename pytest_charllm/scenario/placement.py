"""Which parameter is split over which axis, and so how large each rank's part of it is.

| parameter | over tp | over ep |
|---|---|---|
| embedding, head | rows (the vocabulary) | - |
| q, k, v, first feed-forward layers, and their biases | rows (heads, inner width) | - |
| attention output, last feed-forward layer | columns; the bias is whole | - |
| the same layers of experts | as above, behind the dimension of experts | experts |
| norms, positions, router | whole | - |
| adapters' `up` | rows | - |
| adapters' `down` | whole, and its gradient is a sum over the ranks' rows of `up` | - |
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_charllm.scenario.models import ModelShape
from pytest_charllm.scenario.spec import Layout

_ROWS = ("embed", "head", "attn.wq", "attn.wk", "attn.wv", "ffn.fc1", "ffn.w1", "ffn.w3")
_COLUMNS = ("attn.wo", "ffn.fc2", "ffn.w2")
_EXPERTS = ("ffn.w1", "ffn.w2", "ffn.w3")


class Placement(NamedTuple):
    """`tp_dim`: the dimension split over tp, None where every rank has all of it. `expert`: dimension 0 is over ep."""

    tp_dim: int | None
    expert: bool


def placement(shape: ModelShape, name: str) -> Placement:
    """Of a parameter by its name in `parameter_list`."""
    layer, _, kind = name.rpartition(".")
    if layer.startswith("blocks."):
        layer = layer.split(".", 2)[2]
    expert = bool(shape.experts) and layer in _EXPERTS
    if kind == "down":
        return Placement(None, expert)
    if layer in _ROWS:
        return Placement(int(expert), expert)
    if layer in _COLUMNS and kind == "weight":
        return Placement(1 + expert, expert)
    return Placement(None, expert)


def is_summed_over_tp(shape: ModelShape, name: str, sequence_parallel: bool) -> bool:
    """Whether of a parameter that all tp ranks have whole each has a part of the gradient: from its own tokens, or from
    its own rows of an adapter's `up`."""
    return placement(shape, name).tp_dim is None and (sequence_parallel or name.endswith(".down"))


def local_size(shape: ModelShape, name: str, size: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The part of a parameter of full `size` that one rank holds before data-parallel sharding.

    The layout must pass the feasibility rules: sizes are divided without looking for remainders.
    """
    tp_dim, expert = placement(shape, name)
    local = list(size)
    if tp_dim is not None:
        local[tp_dim] //= layout.tp
    if expert:
        local[0] //= layout.ep
    return tuple(local)
