"""Model shapes, their parameters by name, and how many there are.

What a family fixes:

| family | positions | norm | feed-forward | linear biases | head |
|---|---|---|---|---|---|
| gpt3 | learned table of `seq` rows | LayerNorm (weight, bias) | fc1, GELU, fc2 | yes | tied to the embedding |
| llama | RoPE | RMSNorm (weight) | SwiGLU: w2(silu(w1 x) * w3 x) | no | own, untied |
| mixtral | RoPE | RMSNorm (weight) | router, then `topk` of `experts` SwiGLUs | no | own, untied |

All are pre-norm decoders with causal attention and no dropout. Every engine builds exactly these parameters, in the
order in which the forward pass first uses them (D = hidden, F = ffn, V = vocab, E = experts, K = kv_heads * head_dim):

| name | shape | families |
|---|---|---|
| ``embed.weight`` | (V, D) | all |
| ``positions.weight`` | (seq, D) | gpt3 |
| ``blocks.{i}.attn_norm.weight`` | (D,) | all |
| ``blocks.{i}.attn_norm.bias`` | (D,) | gpt3 |
| ``blocks.{i}.attn.wq.weight``, ``.bias`` | (D, D), (D,) | all; bias: gpt3 |
| ``blocks.{i}.attn.wk.weight``, ``.bias`` | (K, D), (K,) | all; bias: gpt3 |
| ``blocks.{i}.attn.wv.weight``, ``.bias`` | (K, D), (K,) | all; bias: gpt3 |
| ``blocks.{i}.attn.wo.weight``, ``.bias`` | (D, D), (D,) | all; bias: gpt3 |
| ``blocks.{i}.ffn_norm.weight`` | (D,) | all |
| ``blocks.{i}.ffn_norm.bias`` | (D,) | gpt3 |
| ``blocks.{i}.ffn.fc1.weight``, ``.bias`` | (F, D), (F,) | gpt3 |
| ``blocks.{i}.ffn.fc2.weight``, ``.bias`` | (D, F), (D,) | gpt3 |
| ``blocks.{i}.ffn.router.weight`` | (E, D) | mixtral |
| ``blocks.{i}.ffn.w1.weight`` (gate) | (F, D); mixtral (E, F, D) | llama, mixtral |
| ``blocks.{i}.ffn.w3.weight`` (up) | (F, D); mixtral (E, F, D) | llama, mixtral |
| ``blocks.{i}.ffn.w2.weight`` (down) | (D, F); mixtral (E, D, F) | llama, mixtral |
| ``norm.weight`` | (D,) | all |
| ``norm.bias`` | (D,) | gpt3 |
| ``head.weight`` | (V, D) | llama, mixtral; gpt3 uses ``embed.weight`` again and does not repeat it |

With adapters of rank R (LoRA) wq, wk and wv, of (N, D), each also have ``.down`` (R, D) and ``.up`` (N, R) after their
own, and these alone are trained.
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from functools import cache
from math import prod
from pathlib import Path

import msgspec

from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.scenario.spec import Scenario


class Family(StrEnum):
    """What is common to the models of one lineage; see the module's first table."""

    GPT3 = "gpt3"
    LLAMA = "llama"
    MIXTRAL = "mixtral"


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The widths and depth of one decoder. `seq` is the sequence it is trained with, in tokens."""

    name: str
    family: Family
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    experts: int = 0
    topk: int = 0
    rope_base: float | None = None
    source: str
    lora: int = 0
    """Rank of the adapters on the q, k and v projections, beside which nothing is trained; 0: there are none."""

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Columns of the key (and of the value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def tied(self) -> bool:
        """The head multiplies by the embedding's own weights."""
        return self.family is Family.GPT3

    @property
    def biases(self) -> bool:
        """Every linear layer and every norm of the blocks has a bias."""
        return self.family is Family.GPT3

    @property
    def norm(self) -> str:
        return "layernorm" if self.family is Family.GPT3 else "rmsnorm"

    @property
    def positions(self) -> int:
        """Rows of the learned position table; 0 where positions are rotary and any sequence length will do."""
        return self.seq if self.family is Family.GPT3 else 0


@cache
def models() -> dict[str, ModelShape]:
    """Every known model by name. Read once from ``models.toml``."""
    tables = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert({"name": name, **table}, ModelShape) for name, table in tables.items()}


@cache
def shape(model: str, layers: int | None = None) -> ModelShape:
    """The shape of a model, or of its reduced model with the same widths and only `layers` layers.

    Raises `BadInput` for an unknown model and for a depth that the model does not have.
    """
    known = models()
    if model not in known:
        raise BadInput(f"model {model!r} is not known; {did_you_mean(model, known)}known models: {', '.join(known)}")
    full = known[model]
    if layers is None:
        return full
    if not 1 <= layers <= full.layers:
        raise BadInput(f"model {model} has {full.layers} layers, a reduced one 1 to {full.layers}, not {layers}")
    return msgspec.structs.replace(full, layers=layers)


@cache
def parameter_list(shape: ModelShape) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name, shape) of every parameter of the unsharded model, in order of first use in the forward pass."""
    hidden, bias = shape.hidden, shape.biases
    first = [("embed.weight", (shape.vocab, hidden))]
    if shape.positions:
        first.append(("positions.weight", (shape.positions, hidden)))
    block = block_parameter_list(shape)
    blocks = [(f"blocks.{index}.{name}", size) for index in range(shape.layers) for name, size in block]
    last: list[tuple[str, tuple[int, ...]]] = [*_with_bias("norm", (hidden,), bias)]
    if not shape.tied:
        last.append(("head.weight", (shape.vocab, hidden)))
    return (*first, *blocks, *last)


@cache
def block_parameter_list(shape: ModelShape) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name within the block, shape) of the parameters of one block; all blocks of a model are alike."""
    hidden, ffn, bias = shape.hidden, shape.ffn, shape.biases
    stack = (shape.experts,) if shape.experts else ()
    rows: list[tuple[str, tuple[int, ...]]] = [
        *_with_bias("attn_norm", (hidden,), bias),
        *_projection("attn.wq", hidden, shape),
        *_projection("attn.wk", shape.kv_width, shape),
        *_projection("attn.wv", shape.kv_width, shape),
        *_with_bias("attn.wo", (hidden, hidden), bias),
        *_with_bias("ffn_norm", (hidden,), bias),
    ]
    if shape.family is Family.GPT3:
        rows += [*_with_bias("ffn.fc1", (ffn, hidden), bias), *_with_bias("ffn.fc2", (hidden, ffn), bias)]
        return tuple(rows)
    if shape.experts:
        rows.append(("ffn.router.weight", (shape.experts, hidden)))
    rows += [
        ("ffn.w1.weight", (*stack, ffn, hidden)),
        ("ffn.w3.weight", (*stack, ffn, hidden)),
        ("ffn.w2.weight", (*stack, hidden, ffn)),
    ]
    return tuple(rows)


def _projection(name: str, width: int, shape: ModelShape) -> list[tuple[str, tuple[int, ...]]]:
    rows = _with_bias(name, (width, shape.hidden), shape.biases)
    if shape.lora:
        rows += [(f"{name}.down", (shape.lora, shape.hidden)), (f"{name}.up", (width, shape.lora))]
    return rows


def is_adapter(name: str) -> bool:
    return name.endswith((".down", ".up"))


def is_trained(shape: ModelShape, name: str) -> bool:
    """Whether a parameter of `parameter_list` is, or stays as it is."""
    return not shape.lora or is_adapter(name)


def _with_bias(name: str, size: tuple[int, ...], bias: bool) -> list[tuple[str, tuple[int, ...]]]:
    weight = (f"{name}.weight", size)
    return [weight, (f"{name}.bias", size[:1])] if bias else [weight]


@cache
def parameters(shape: ModelShape) -> int:
    """Parameters of the whole model without adapters, before any sharding."""
    return sum(prod(size) for name, size in parameter_list(shape) if not is_adapter(name))


def shape_of(scenario: Scenario) -> ModelShape:
    """The shape a scenario trains, reduced where it says so, and with its adapters."""
    full = shape(scenario.training.model, scenario.training.layers)
    return msgspec.structs.replace(full, lora=scenario.options.lora) if scenario.options.lora else full


def trainable_parameters(scenario: Scenario) -> int:
    """Of the whole model, before any sharding: all, or those of the adapters."""
    trained = shape_of(scenario)
    return sum(prod(size) for name, size in parameter_list(trained) if is_trained(trained, name))


def sequence(scenario: Scenario) -> int:
    """Tokens of one training sequence."""
    return scenario.training.seq or shape(scenario.training.model).seq


def tokens_per_step(scenario: Scenario) -> int:
    """Tokens of one optimizer step over all ranks."""
    return scenario.global_batch * sequence(scenario)
