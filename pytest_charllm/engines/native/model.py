"""Decoders of the GPT-3, Llama and Mixtral families, as far as one rank holds them.

Parameter names are those of `scenario.models`. Between blocks the residual stream is (tokens, hidden): with tensor
parallelism the tokens of this rank, with context parallelism those of its part of every sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_charllm.engines.native.chunked_loss import ChunkLoss, chunked_cross_entropy
from pytest_charllm.engines.native.context import Context
from pytest_charllm.engines.native.experts import LossAhead, Mixture, Routing, balance_loss
from pytest_charllm.engines.native.loss import cross_entropy
from pytest_charllm.engines.native.mesh import ALONE, Mesh
from pytest_charllm.engines.native.recompute import saving_products
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.scenario import Recompute
from pytest_charllm.scenario.models import Family, ModelShape, is_trained
from pytest_charllm.scenario.stages import Stage

_NORM_EPS = 1e-5

Loss = Callable[[Tensor, Tensor, Region], Tensor]
"""(logits (tokens, this rank's part of the vocabulary), targets (batch, seq), region) -> mean loss over the tokens."""


class Decoder(nn.Module):
    """One stage. Token ids (batch, seq), or what the stage before returned -> what the next one needs.

    The last stage returns the loss where it is given `targets` (batch, seq), else logits (tokens, vocabulary), in the
    compute precision. The loss of a mixture is the sum of cross entropy and `balance`.

    Rotary models need `fill_rotary` first. The table is no buffer: DDP would broadcast it in every step. `autocast`:
    compute in this precision over weights in fp32. `seq`: tokens of a sequence on this rank, needed where the stage is
    not the first.
    """

    rotary: Tensor | None = None
    autocast: torch.dtype | None = None
    seq: int | None = None

    def __init__(
        self,
        shape: ModelShape,
        mesh: Mesh = ALONE,
        stage: Stage | None = None,
        sequence_parallel: bool = True,
        ring: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.stage = stage if stage is not None else Stage(range(shape.layers))
        self.region = Region(mesh.tp, sequence_parallel)
        self.context = Context(mesh.cp, ring)
        self.loss: Loss = cross_entropy
        self.chunk_loss: ChunkLoss | None = None
        """Where head and loss are to work on a chunk of the tokens at a time: the loss of one."""
        self.routing = Routing()
        self.balance: Tensor | None = None
        """Of a mixture's last forward pass: its auxiliary loss, for the tokens of this rank."""
        self.ahead = LossAhead()
        vocab = shape.vocab // mesh.tp.size
        first, last = self.stage.first, self.stage.last
        self.embed = nn.Embedding(vocab, shape.hidden) if first else None
        self.positions = nn.Embedding(shape.positions, shape.hidden) if first and shape.positions else None
        self.blocks = nn.ModuleDict(
            {str(layer): Block(shape, mesh, self.region, self.context, self.routing) for layer in self.stage.layers}
        )
        self.norm = _norm(shape) if last else None
        # A tied head in another stage than the embedding is a copy, which `tied` keeps equal.
        tied_here = shape.tied and first
        self.head = nn.Linear(shape.hidden, vocab, bias=False) if last and not tied_here else None
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(is_trained(shape, name))

    def fill_rotary(self, seq: int, device: torch.device) -> None:
        """Compute the cosines and sines of RoPE, (2, seq, 1, head_dim / 2), for sequences of up to `seq` tokens."""
        if self.shape.rope_base is None:
            return
        half = self.shape.head_dim // 2
        frequency = self.shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), frequency)
        self.rotary = torch.stack([angle.cos(), angle.sin()]).unsqueeze(2).to(device, torch.float32)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        with self._precision(x.device):
            seq = self.seq if self.embed is None else x.shape[1]
            assert seq is not None
            if self.embed is not None:
                x = self._embed(x)
            rotary = None if self.rotary is None else self._own_positions(self.rotary, seq, dim=1)
            loads = []
            for block in self.blocks.values():
                x, load = block(x, seq, rotary)
                loads.append(load)
            if self.shape.experts:
                self.balance = self._balance(torch.stack(loads), len(x))
                self.routing.count(torch.stack(loads)[:, 0].detach())
            if self.norm is None:
                return x if self.balance is None else self.ahead.carry(x, self.balance)
            x = self.region.enter(self.norm(x))
            head = self.embed if self.head is None else self.head
            assert head is not None
            if targets is None:
                return F.linear(x, head.weight)
            if self.chunk_loss is None:
                loss = self.loss(F.linear(x, head.weight), targets, self.region)
            else:
                loss = chunked_cross_entropy(x, head.weight, targets, self.region, self.chunk_loss)
            return loss if self.balance is None else loss + self.balance

    def _balance(self, loads: Tensor, tokens: int) -> Tensor:
        sharing = [self.region.group if self.region.sequence_parallel else "", self.context.group]
        groups = tuple(group for group in sharing if group and self.routing.real)
        return balance_loss(loads, tokens, self.shape.topk, self.region, self.context.size, groups)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embed is not None
        ids = tokens.flatten()
        rows = self.embed.num_embeddings
        if self.region.size > 1:
            ids = ids - self.region.rank * rows
            here = (ids >= 0) & (ids < rows)
            x = self.embed(ids.clamp(0, rows - 1)) * here.unsqueeze(-1)
        else:
            x = self.embed(ids)
        if self.autocast is not None:
            # Autocast leaves embeddings alone: without this the residual stream would be fp32 all the way down.
            x = x.to(self.autocast)
        x = self.region.leave(x)
        if self.positions is not None:
            rows_of = self._own_positions(self.positions.weight, tokens.shape[1], dim=0)
            x = x + self.region.own(rows_of.repeat(tokens.shape[0], 1)).to(x.dtype)
        return x

    def _own_positions(self, table: Tensor, seq: int, dim: int) -> Tensor:
        """What a table by position says of this rank's `seq` tokens of every sequence."""
        return self.context.part(table.narrow(dim, 0, seq * self.context.size), dim)

    def _precision(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)


class Block(nn.Module):
    """One pre-norm decoder layer. `recompute` says what its backward pass computes again instead of keeping."""

    recompute = Recompute.NONE

    def __init__(self, shape: ModelShape, mesh: Mesh, region: Region, context: Context, routing: Routing) -> None:
        super().__init__()
        self.attn_norm = _norm(shape)
        self.attn = Attention(shape, region, context)
        self.ffn_norm = _norm(shape)
        if shape.experts:
            self.ffn: nn.Module = Mixture(shape, mesh, region, routing)
        else:
            self.ffn = Gelu(shape, region) if shape.family is Family.GPT3 else SwiGlu(shape, region)

    def forward(self, x: Tensor, seq: int, rotary: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The residual stream after this layer, and the load of its experts where it has some."""
        if self.recompute is Recompute.FULL:
            return checkpoint(self._layer, x, seq, rotary, use_reentrant=False, preserve_rng_state=False)
        if self.recompute is Recompute.SELECTIVE:
            return checkpoint(
                self._layer, x, seq, rotary, use_reentrant=False, preserve_rng_state=False, context_fn=saving_products
            )
        return self._layer(x, seq, rotary)

    def _layer(self, x: Tensor, seq: int, rotary: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = self.attended(x, seq, rotary)
        change = self.ffn(self.ffn_norm(x))
        if isinstance(change, tuple):  # a mixture, whichever engine's
            return x + change[0], change[1]
        return x + change, None

    def attended(self, x: Tensor, seq: int, rotary: Tensor | None) -> Tensor:
        return x + self.attn(self.attn_norm(x), seq, rotary)


class Attention(nn.Module):
    def __init__(self, shape: ModelShape, region: Region, context: Context) -> None:
        super().__init__()
        self.region, self.context = region, context
        self.head_dim = shape.head_dim
        width, kv_width = shape.hidden // region.size, shape.kv_width // region.size
        self.wq = _projection(shape, width)
        self.wk = _projection(shape, kv_width)
        self.wv = _projection(shape, kv_width)
        self.wo = RowParallel(width, shape.hidden, region, bias=shape.biases)

    def forward(self, x: Tensor, seq: int, rotary: Tensor | None) -> Tensor:
        x = self.region.enter(x)
        q, k, v = (project(x).view(-1, seq, project.out_features // self.head_dim, self.head_dim)
                   for project in (self.wq, self.wk, self.wv))  # fmt: skip
        if rotary is not None:
            q, k = _rotate(q, rotary), _rotate(k, rotary)
        return self.wo(self.context.attend(q, k, v).flatten(2).flatten(0, 1))


def _projection(shape: ModelShape, width: int) -> nn.Linear:
    if shape.lora:
        return Adapted(shape.hidden, width, shape.biases, shape.lora)
    return nn.Linear(shape.hidden, width, bias=shape.biases)


class Adapted(nn.Linear):
    """A projection with a detour of low rank beside it (LoRA, Hu et al. 2021), scaled by one: alpha is the rank."""

    def __init__(self, in_features: int, out_features: int, bias: bool, rank: int) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.down = nn.Parameter(torch.empty(rank, in_features))
        self.up = nn.Parameter(torch.empty(out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.down), self.up)


class RowParallel(nn.Linear):
    """The last layer of a tensor-parallel region: sums the ranks' parts, and then adds a bias once."""

    def __init__(self, in_features: int, out_features: int, region: Region, bias: bool) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.region = region

    def forward(self, x: Tensor) -> Tensor:
        if self.region.size == 1:
            return F.linear(x, self.weight, self.bias)
        x = self.region.leave(F.linear(x, self.weight))
        return x if self.bias is None else x + self.bias.to(x.dtype)


class SwiGlu(nn.Module):
    def __init__(self, shape: ModelShape, region: Region) -> None:
        super().__init__()
        self.region = region
        width = shape.ffn // region.size
        self.w1 = nn.Linear(shape.hidden, width, bias=shape.biases)
        self.w3 = nn.Linear(shape.hidden, width, bias=shape.biases)
        self.w2 = RowParallel(width, shape.hidden, region, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        x = self.region.enter(x)
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Gelu(nn.Module):
    def __init__(self, shape: ModelShape, region: Region) -> None:
        super().__init__()
        self.region = region
        width = shape.ffn // region.size
        self.fc1 = nn.Linear(shape.hidden, width, bias=shape.biases)
        self.fc2 = RowParallel(width, shape.hidden, region, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(self.region.enter(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    """RMSNorm in the precision of its input, with the fp32 weight of autocast cast down rather than the input up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), _NORM_EPS)


class LayerNorm(nn.LayerNorm):
    """LayerNorm that gives back the precision of its input, where autocast would go on in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


def _norm(shape: ModelShape) -> nn.Module:
    return LayerNorm(shape.hidden, eps=_NORM_EPS) if shape.norm == "layernorm" else RmsNorm(shape.hidden)


def _rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn the two halves of each head (batch, seq, heads, head_dim) by the angle of its position."""
    cos, sin = rotary
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)
