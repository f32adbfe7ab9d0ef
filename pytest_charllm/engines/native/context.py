"""Context parallelism: every rank has a part of each sequence, and attention sees the whole.

Ulysses exchanges sequence for heads around the attention, in one all-to-all of queries, keys and values together and
one of the output: fewer and larger messages than one each. A ring leaves the heads where they are, see `ring`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_charllm.engines.native.attention import attend
from pytest_charllm.engines.native.functional import exchange
from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.ring import ring_attention


class Context:
    """One context-parallel group. At size 1 a rank has whole sequences. `overlap`: a ring sends while it computes."""

    overlap = True

    def __init__(self, axis: Axis, ring: bool = False) -> None:
        self.size, self.rank, self.ring = axis.size, axis.rank, ring and axis.size > 1
        self.group = axis.name if axis.size > 1 and axis.group is not None else ""

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's tokens of dimension `dim`: for a ring one piece from the front and one from the back."""
        if self.size == 1:
            return x
        if self.ring:
            pieces = x.chunk(2 * self.size, dim)
            return torch.cat([pieces[self.rank], pieces[-1 - self.rank]], dim)
        return x.chunk(self.size, dim)[self.rank]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention over whole sequences, of this rank's tokens (batch, tokens, heads, head_dim); k and v may
        have fewer heads, each serving a group."""
        if self.size == 1:
            return attend(q, k, v)
        if self.ring:
            return ring_attention(q, k, v, self.group, self.overlap)[0]
        return self._to_tokens(attend(*self._to_heads(q, k, v)))

    def _to_heads(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """All heads of this rank's tokens -> this rank's heads of all tokens."""
        by_rank = [x.unflatten(2, (self.size, -1)).permute(2, 0, 1, 3, 4) for x in parts]
        whole = exchange(torch.cat(by_rank, dim=3), self.size, self.group)
        return whole.transpose(0, 1).flatten(1, 2).split([x.shape[3] for x in by_rank], dim=2)

    def _to_tokens(self, x: Tensor) -> Tensor:
        """The inverse, for one tensor."""
        by_rank = x.unflatten(1, (self.size, -1)).transpose(0, 1)
        return exchange(by_rank, self.size, self.group).permute(1, 2, 0, 3, 4).flatten(2, 3)
