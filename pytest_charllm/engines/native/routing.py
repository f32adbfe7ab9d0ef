"""The way of a token's copies to the ranks that hold its experts, and back.

A rank sends its own tokens, one copy for each chosen expert, through one all-to-all over ep. With tensor parallelism
every tp rank of the receiver has a part of each expert, so the rows are gathered over tp there, and what leaves the
experts is summed: with sequence parallelism each copy crosses ep once, and only tp sees it several times. Without,
every tp rank sends the same copies.

Ways differ in who decides. `Balanced` gives every expert the same number of tokens, by a fixed assignment: all sizes
are known on the host, so nothing waits for the device. `Routed` goes where the router says: ranks tell each other how
many copies come, and the host waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pytest_charllm.engines.native.functional import all_gather, all_to_all, exchange
from pytest_charllm.engines.native.grouped import Groups, equal_groups
from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.engines.native.tensor import Region


@dataclass(frozen=True)
class Place:
    """Where the experts are: `experts` of them in equal parts over ep, `topk` of which work on a token."""

    experts: int
    topk: int
    ep: Axis
    region: Region

    @property
    def local(self) -> int:
        """Experts of this rank."""
        return self.experts // self.ep.size


class Way(Protocol):
    """Of one microbatch through one layer. `chosen`: experts (tokens, topk); `counts`: how many of this rank's copies
    go to each expert, fp32."""

    chosen: Tensor
    counts: Tensor
    groups: Groups

    def there(self, x: Tensor) -> Tensor:
        """(tokens of this rank, hidden) -> the rows of this rank's experts, expert by expert."""

    def back(self, rows: Tensor) -> Tensor:
        """What the experts make of these rows -> (tokens of this rank, topk, hidden), whole sums."""


class Balanced:
    """Copy c of all (token by token) goes to expert c modulo the number of experts.

    The number of copies must be a multiple of that of the experts, and that one of `topk`.
    """

    def __init__(self, place: Place, tokens: int, device: torch.device) -> None:
        self.place, self.share = place, tokens * place.topk // place.experts
        copies = torch.arange(tokens * place.topk, device=device)
        self.chosen = (copies % place.experts).view(tokens, place.topk)
        self.counts = torch.full((place.experts,), float(self.share), device=device)
        senders = place.ep.size * (place.region.size if place.region.sequence_parallel else 1)
        self.groups = equal_groups(place.local, senders * self.share, device)

    def there(self, x: Tensor) -> Tensor:
        place, hidden = self.place, x.shape[1]
        turns = place.experts // place.topk
        by_turn = x.view(self.share, turns, 1, hidden).expand(-1, -1, place.topk, -1)
        rows = by_turn.permute(1, 2, 0, 3).reshape(-1, hidden)
        rows = place.region.enter(_exchange(rows, place.ep))
        return rows.view(-1, place.local, self.share, hidden).transpose(0, 1).reshape(-1, hidden)

    def back(self, rows: Tensor) -> Tensor:
        place, hidden = self.place, rows.shape[1]
        by_sender = rows.view(place.local, -1, self.share, hidden).transpose(0, 1).reshape(-1, hidden)
        rows = _exchange(place.region.leave(by_sender), place.ep)
        by_turn = rows.view(-1, place.topk, self.share, hidden)
        return by_turn.permute(2, 0, 1, 3).reshape(-1, place.topk, hidden)


class Routed:
    """Every copy goes to the expert that was chosen for it. Waits for the device once."""

    def __init__(self, place: Place, chosen: Tensor) -> None:
        self.place, self.chosen = place, chosen
        experts = chosen.flatten()
        self.counts = torch.zeros(place.experts, device=chosen.device)
        self.counts.scatter_add_(0, experts, torch.ones_like(experts, dtype=self.counts.dtype))
        self._order = experts.argsort(stable=True)
        counts = self.counts.to(torch.int64)
        coming = counts if place.ep.size == 1 else all_to_all(counts, place.ep.size, place.ep.name)
        if place.region.sequence_parallel:
            coming = all_gather(coming, place.region.size, place.region.group)
        coming = coming.view(-1, place.experts)  # by tp rank; in each, local experts by ep rank
        going, *all_coming = torch.cat([counts.unsqueeze(0), coming]).tolist()  # the host waits here
        mine = all_coming[place.region.rank if place.region.sequence_parallel else 0]
        self._send, self._receive = (_sums(sizes, place.ep.size) for sizes in (going, mine))
        # tp ranks gather equal pieces, so shorter ones are filled up with rows that no expert takes.
        self._rows, self._filled = sum(mine), max(map(sum, all_coming))
        fill = self._filled - coming.sum(dim=1, keepdim=True)
        expert_of = torch.arange(place.experts + 1, device=chosen.device) % place.local
        expert_of[-1] = place.local
        by_expert = torch.repeat_interleave(
            expert_of.repeat(len(coming)), torch.cat([coming, fill], dim=1).flatten(),
            output_size=len(coming) * self._filled,
        ).argsort(stable=True)  # fmt: skip
        self._taken = by_expert[: sum(map(sum, all_coming))]
        ends = coming.view(-1, place.local).sum(dim=0).cumsum(0, dtype=torch.int32)
        sizes = tuple(sum(sum(each[expert :: place.local]) for each in all_coming) for expert in range(place.local))
        self.groups = Groups(sizes, ends)

    def there(self, x: Tensor) -> Tensor:
        place = self.place
        rows = _exchange(x[self._order // place.topk], place.ep, self._receive, self._send)
        rows = torch.cat([rows, rows.new_zeros(self._filled - self._rows, rows.shape[1])])
        return place.region.enter(rows)[self._taken]

    def back(self, rows: Tensor) -> Tensor:
        place = self.place
        senders = place.region.size if place.region.sequence_parallel else 1
        by_sender = rows.new_zeros(senders * self._filled, rows.shape[1]).index_copy(0, self._taken, rows)
        whole = place.region.leave(by_sender)[: self._rows]
        rows = _exchange(whole, place.ep, self._send, self._receive)
        return rows[self._order.argsort()].unflatten(0, (-1, place.topk))


def _sums(sizes: list[int], pieces: int) -> list[int]:
    length = len(sizes) // pieces
    return [sum(sizes[start : start + length]) for start in range(0, len(sizes), length)]


def _exchange(x: Tensor, axis: Axis, receive: list[int] | None = None, send: list[int] | None = None) -> Tensor:
    """Rows to and from every rank of an axis, in its order; equally many where no sizes are given."""
    return x if axis.size == 1 else exchange(x, axis.size, axis.name, receive, send)
