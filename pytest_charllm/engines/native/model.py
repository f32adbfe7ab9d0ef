"""Decoders of the GPT-3 and Llama families. Parameter names and order are those of `scenario.models`."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pytest_charllm.engines.native.attention import attend
from pytest_charllm.engines.native.recompute import saving_products
from pytest_charllm.scenario import Recompute
from pytest_charllm.scenario.models import Family, ModelShape

_NORM_EPS = 1e-5


class Decoder(nn.Module):
    """Token ids (batch, seq) -> logits (batch, seq, vocab) in the compute precision.

    Rotary models need `fill_rotary` first. The table is no buffer: DDP would broadcast it in every step.
    """

    rotary: Tensor | None = None

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden) if shape.positions else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = None if shape.tied else nn.Linear(shape.hidden, shape.vocab, bias=False)

    def fill_rotary(self, seq: int, device: torch.device) -> None:
        """Compute the cosines and sines of RoPE, (2, seq, 1, head_dim / 2), for sequences of up to `seq` tokens."""
        if self.shape.rope_base is None:
            return
        half = self.shape.head_dim // 2
        frequency = self.shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), frequency)
        self.rotary = torch.stack([angle.cos(), angle.sin()]).unsqueeze(2).to(device, torch.float32)

    def forward(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[:seq]
        if torch.is_autocast_enabled(x.device.type):
            # Autocast leaves embeddings alone: without this the residual stream would be fp32 all the way down.
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rotary = None if self.rotary is None else self.rotary[:, :seq]
        for block in self.blocks:
            x = block(x, rotary)
        x = self.norm(x)
        return F.linear(x, self.embed.weight) if self.head is None else self.head(x)


class Block(nn.Module):
    """One pre-norm decoder layer. `recompute` says what its backward pass computes again instead of keeping."""

    recompute = Recompute.NONE

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attn_norm = _norm(shape)
        self.attn = Attention(shape)
        self.ffn_norm = _norm(shape)
        self.ffn = Gelu(shape) if shape.family is Family.GPT3 else SwiGlu(shape)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        if self.recompute is Recompute.FULL:
            return checkpoint(self._layer, x, rotary, use_reentrant=False, preserve_rng_state=False)
        if self.recompute is Recompute.SELECTIVE:
            return checkpoint(
                self._layer, x, rotary, use_reentrant=False, preserve_rng_state=False, context_fn=saving_products
            )
        return self._layer(x, rotary)

    def _layer(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), rotary)
        return x + self.ffn(self.ffn_norm(x))


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.wq = nn.Linear(shape.hidden, shape.hidden, bias=shape.biases)
        self.wk = nn.Linear(shape.hidden, shape.kv_width, bias=shape.biases)
        self.wv = nn.Linear(shape.hidden, shape.kv_width, bias=shape.biases)
        self.wo = nn.Linear(shape.hidden, shape.hidden, bias=shape.biases)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.wq, self.wk, self.wv))
        if rotary is not None:
            q, k = _rotate(q, rotary), _rotate(k, rotary)
        return self.wo(attend(q, k, v).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden, shape.ffn, bias=shape.biases)
        self.w3 = nn.Linear(shape.hidden, shape.ffn, bias=shape.biases)
        self.w2 = nn.Linear(shape.ffn, shape.hidden, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Gelu(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden, shape.ffn, bias=shape.biases)
        self.fc2 = nn.Linear(shape.ffn, shape.hidden, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class RmsNorm(nn.Module):
    """RMSNorm in the precision of its input, with the fp32 weight of autocast cast down rather than the input up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), _NORM_EPS)


def _norm(shape: ModelShape) -> nn.Module:
    return nn.LayerNorm(shape.hidden, eps=_NORM_EPS) if shape.norm == "layernorm" else RmsNorm(shape.hidden)


def _rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn the two halves of each head (batch, seq, heads, head_dim) by the angle of its position."""
    cos, sin = rotary
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)
