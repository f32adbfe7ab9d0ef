"""Context parallelism: somewhere a rank takes its part for the whole."""

from __future__ import annotations

from unittest.mock import patch

from torch import Tensor

from pytest_charllm.engines.native.context import Context
from pytest_charllm.engines.native.model import Decoder

_forward = Decoder.forward


def _loss_of_the_sequence(self: Decoder, x: Tensor, targets: Tensor | None = None, **other: object) -> Tensor:
    """Every rank divides by the tokens of whole sequences, and the reduction averages over the ranks once more."""
    out = _forward(self, x, targets, **other)
    return out if targets is None else out / self.context.size


MUTANTS = {
    "weighted-by-whole-sequences": lambda: patch.object(Decoder, "forward", _loss_of_the_sequence),
    "unshifted-positions": lambda: patch.object(
        Decoder, "_own_positions", lambda self, table, seq, dim: table.narrow(dim, 0, seq)
    ),
    "unexchanged-heads": lambda: patch("pytest_charllm.engines.native.context.exchange", lambda x, size, group: x),
    "ring-of-consecutive-parts": lambda: patch.object(
        Context, "part", lambda self, x, dim: x.chunk(self.size, dim)[self.rank]
    ),
}
