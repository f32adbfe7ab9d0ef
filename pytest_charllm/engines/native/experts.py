"""The feed-forward layer of a mixture of experts, and what keeps its experts equally busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Function

from pytest_charllm.engines.native.functional import all_reduce
from pytest_charllm.engines.native.grouped import Groups, expert_backend, grouped_product
from pytest_charllm.engines.native.mesh import Mesh
from pytest_charllm.engines.native.precision import compute_dtype
from pytest_charllm.engines.native.routing import Balanced, Place, Routed, Way
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Pass, RankRequest
from pytest_charllm.scenario import Precision
from pytest_charllm.scenario.models import ModelShape

BALANCE_WEIGHT = 0.01
"""Mixtral's own."""


@dataclass
class Routing:
    """One a model. `real`: tokens go where the router says; otherwise every expert gets the same number of them. Either
    way the experts' results are weighted by the router's probabilities, so it learns. `load`: copies sent so far by
    real routing, (layers, experts)."""

    real: bool = False
    load: Tensor | None = None

    def count(self, copies: Tensor) -> None:
        """`copies` (layers, experts) of one microbatch."""
        if self.real:
            copies = copies.double()
            self.load = copies if self.load is None else self.load + copies


def real_routing(request: RankRequest) -> bool:
    """Parity is of what the router says; time is of balanced routing, unless the scenario asks for the other."""
    return request.pass_ is Pass.DIAGNOSTIC or request.scenario.options.real_routing


@contextmanager
def balanced(routings: Iterable[Routing]) -> Iterator[None]:
    """For a step whose work must be known beforehand."""
    before = [(routing, routing.real) for routing in routings]
    for routing, _ in before:
        routing.real = False
    try:
        yield
    finally:
        for routing, real in before:
            routing.real = real


def load_of(routings: Mapping[range, Routing], shape: ModelShape) -> Tensor | None:
    """Copies sent so far (layers, experts), by the layers of each stage of this rank; zero for those of other ranks."""
    loads = {layers: routing.load for layers, routing in routings.items() if routing.load is not None}
    if not loads:
        return None
    whole = torch.zeros(shape.layers, shape.experts, dtype=torch.float64, device=next(iter(loads.values())).device)
    for layers, load in loads.items():
        whole[layers.start : layers.stop] = load
    return whole


def expert_imbalance(load: Tensor | None, world: World) -> float | None:
    """Most copies of an expert over their mean, of all ranks together, in the layer where that is largest. Collective
    where there is a load, which then every rank has."""
    if load is None:
        return None
    mean = torch.tensor(world.mean(load), dtype=torch.float64)
    return (mean.amax(dim=1) / mean.mean(dim=1)).max().item()


def backend_of(shape: ModelShape, precision: Precision, device: torch.device) -> str | None:
    """What multiplies the experts' rows; None for a model without experts."""
    return expert_backend(compute_dtype(precision), device) if shape.experts else None


class Experts(nn.Module):
    """The same linear layer of all experts of this rank."""

    def __init__(self, experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features))

    def forward(self, rows: Tensor, groups: Groups) -> Tensor:
        return grouped_product(rows, self.weight, groups)


class Mixture(nn.Module):
    """`topk` of the experts work on each token, weighted by the router's softmax over all of them, brought to sum 1."""

    def __init__(self, shape: ModelShape, mesh: Mesh, region: Region, routing: Routing) -> None:
        super().__init__()
        self.place = Place(shape.experts, shape.topk, mesh.ep, region)
        self.routing = routing
        width = shape.ffn // region.size
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.w1 = Experts(self.place.local, shape.hidden, width)
        self.w3 = Experts(self.place.local, shape.hidden, width)
        self.w2 = Experts(self.place.local, width, shape.hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens of this rank, hidden) -> the same, and the load (2, experts) that `balance_loss` asks for."""
        probabilities = F.softmax(self.router(x).float(), dim=-1)
        way = self._way(probabilities)
        weights = probabilities.gather(1, way.chosen)
        weights = weights / weights.sum(dim=1, keepdim=True)
        rows = way.there(x)
        rows = self.w2(self.gate(self.w1(rows, way.groups), self.w3(rows, way.groups)), way.groups)
        return self.join(way.back(rows), weights), torch.stack([way.counts, probabilities.sum(dim=0)])

    def _way(self, probabilities: Tensor) -> Way:
        if self.routing.real:
            return Routed(self.place, probabilities.topk(self.place.topk, dim=1).indices)
        return Balanced(self.place, len(probabilities), probabilities.device)

    def gate(self, opened: Tensor, value: Tensor) -> Tensor:
        return F.silu(opened) * value

    def join(self, results: Tensor, weights: Tensor) -> Tensor:
        """Sum (tokens, topk, hidden) by weights (tokens, topk) in fp32."""
        return (results * weights.unsqueeze(-1)).sum(dim=1).to(results.dtype)


class LossAhead:
    """The part of a loss that is known before the last stage of a pipeline: it stays where it is, and its gradient sets
    out when that of what the stage hands on comes back. `weight`: the part of a microbatch in what is differentiated.
    """

    weight = 1.0

    def __init__(self) -> None:
        self._values: list[Tensor] = []

    def carry(self, x: Tensor, loss: Tensor) -> Tensor:
        self._values.append(loss.detach())
        return _Carried.apply(x, loss, self.weight)

    def take(self) -> list[Tensor]:
        """Weighted, one a microbatch since the last call."""
        values, self._values = self._values, []
        return [value * self.weight for value in values]


class _Carried(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = loss.new_full((), weight)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, ctx.weight, None


def balance_loss(loads: Tensor, tokens: int, topk: int, region: Region, cp: int, groups: tuple[str, ...]) -> Tensor:
    """Mixtral's auxiliary loss, summed over layers: weight * experts * sum over experts of (share of the copies that
    go to it) * (its mean probability), over all tokens of a microbatch. It is `weight` a layer in perfect balance.

    `loads` (layers, 2, experts) are of this rank's `tokens`: copies for each expert, and sums of probabilities. Where
    tp or cp ranks share a microbatch, the copies are summed over `groups`; () where they are equal anyway. The gradient
    is that of this rank's tokens alone. The value is such that its mean over all ranks is the whole loss.
    """
    copies, probabilities = loads[:, 0].detach(), loads[:, 1]
    parts = region.size if region.sequence_parallel else 1
    whole = copies * (parts * cp) if not groups else copies
    for group in groups:
        whole = all_reduce(whole, group)
    experts = loads.shape[2]
    shares = whole / (tokens * parts * cp * topk)
    mine = BALANCE_WEIGHT * experts * (shares * probabilities).sum() / (tokens * parts)
    return mine + (parts - 1) * mine.detach()
