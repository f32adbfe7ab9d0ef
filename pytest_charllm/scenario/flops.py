"""FLOPs of a scenario, by formula: what the model needs (for MFU) and what the hardware executes (a strict check).

The two differ: model FLOPs never count recomputation, and by convention may halve causal attention; hardware FLOPs are
the exact count that torch's ``FlopCounterMode`` gives for the matrix products of one optimizer step.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import prod

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.models import ModelShape, block_parameter_list, sequence, shape_of, tokens_per_step
from pytest_charllm.scenario.spec import Recompute, Scenario, Sharding

FORMULAS = {"causal_half": 3, "palm_full": 6}
"""Formula -> factor of the attention term. The two are up to 13 % apart at 8,192 tokens; never compare across them."""

FLOP_FORMULA = "causal_half"
"""The one that every MFU of ours is by."""

_ATTENTION_FORWARD = 2
"""Products of one attention: scores, and scores times values."""

_ATTENTION_BACKWARD = 5
"""As torch counts the fused kernels (flash, cuDNN, efficient): the four gradients, and the scores once more."""

_MATH_BACKWARD = 4
"""torch's unfused attention keeps the scores, so its backward pass is the gradients alone."""


def flops_per_token(scenario: Scenario, formula: str = FLOP_FORMULA) -> float:
    """Model FLOPs of one trained token: ``6 N + c L S heads (2 head_dim)``.

    N counts the weights that a token is multiplied with: no input embedding, positions, norms and biases, but the head
    (once, tied or not), and of a mixture the router and the `topk` experts that work. c is 6 for ``palm_full`` (PaLM,
    torchtitan) and 3 for ``causal_half`` (Megatron-LM). Frozen weights have no gradient of their own: with adapters it
    is ``4 N + 6 N_adapters``. Raises `BadInput` for another formula.
    """
    if formula not in FORMULAS:
        raise BadInput(f"FLOP formula {formula!r} is not known; formulas: {', '.join(FORMULAS)}")
    shape = shape_of(scenario)
    weights = shape.layers * sum(_block_products(shape).values()) + shape.vocab * shape.hidden
    attention = shape.layers * sequence(scenario) * shape.heads * 2 * shape.head_dim
    linear = 4 * weights + 6 * shape.layers * sum(_adapter_products(shape)) if shape.lora else 6 * weights
    return float(linear + FORMULAS[formula] * attention)


def hardware_flops_per_step(scenario: Scenario, attention_backend: str | None = None) -> int:
    """Executed FLOPs of one optimizer step over all ranks, recomputation included, attention not halved.

    Linear layers: 2 per weight and token forward, 4 backward. Fused attention: 2 products forward, 5 backward;
    `attention_backend` "math", as a rank reports it, is not fused: 4 backward. Full recomputation repeats the forward
    pass of every block up to the input of its last linear layer, where torch stops because nothing more is needed; of a
    mixture and with ZeRO 3 all of it, see `_repeats_last`.
    Selective recomputation keeps the results of all products, so it repeats none. Norms, activations, biases, the loss
    and the optimizer count nothing. Around adapters frozen weights have no gradient, and the input of the first block
    needs none; every tp rank does all of the adapters' `down`, and without sequence parallelism of the router.

    On a CPU `FlopCounterMode` does not know the fused attention kernel by itself: register torch's own formulas
    (``sdpa_flop_count``, ``sdpa_backward_flop_count``) for it.

    Raises `BadInput` for DeepSpeed's mixtures, whose FLOPs follow the routing.
    """
    shape = shape_of(scenario)
    if scenario.engine == "deepspeed" and shape.experts:
        raise BadInput(f"FLOPs of {scenario.key} follow the routing: every expert gets the room of the fullest one")
    products = dict(_block_products(shape))
    if shape.experts and not scenario.layout.sequence_parallel:
        products["ffn.router"] *= scenario.layout.tp
    weights = shape.layers * sum(products.values()) + shape.vocab * shape.hidden
    linear = 6 * weights
    if shape.lora:
        down, up = _adapter_products(shape, scenario.layout.tp)
        projections = products["attn.wq"] + products["attn.wk"] + products["attn.wv"]
        linear = 4 * weights - 2 * projections + 6 * shape.layers * (down + up) - 2 * down
    attention = _ATTENTION_FORWARD + (_MATH_BACKWARD if attention_backend == "math" else _ATTENTION_BACKWARD)
    if scenario.options.recompute is Recompute.FULL:
        last = "ffn.fc2" if "ffn.fc2" in products else "ffn.w2"
        linear += 2 * shape.layers * (sum(products.values()) - (0 if _repeats_last(scenario) else products[last]))
        linear += 2 * shape.layers * sum(_adapter_products(shape, scenario.layout.tp))
        attention += _ATTENTION_FORWARD
    one_attention_product = 2 * _keys_per_query(scenario) * shape.heads * shape.head_dim
    return round(tokens_per_step(scenario) * (linear + attention * shape.layers * one_attention_product))


def _repeats_last(scenario: Scenario) -> bool:
    """Whether recomputation does the last linear layer of a block once more: experts' results have yet to be weighted,
    and ZeRO 3 puts a linear layer of its own in the place of torch's, which is not cut short."""
    return bool(shape_of(scenario).experts) or scenario.layout.sharding is Sharding.ZERO3


def _keys_per_query(scenario: Scenario) -> Fraction:
    """On the average over a sequence. A kernel is counted with all the keys it is given, masked or not.

    In a ring of n ranks a query is in one of 2n pieces of the sequence. A rank sees with both of its pieces both of
    its own, and of every other rank half as many products as that: 2 + (n - 1) of 2n pieces on the average.
    """
    layout = scenario.layout
    share = Fraction(layout.cp + 1, 2 * layout.cp) if layout.ring else Fraction(1)
    return share * sequence(scenario)


def _adapter_products(shape: ModelShape, tp: int = 1) -> tuple[int, int]:
    """Weights of one block's adapters that one token is multiplied with: of `down` on all tp ranks, of `up`."""
    return 3 * shape.lora * shape.hidden * tp, shape.lora * (shape.hidden + 2 * shape.kv_width)


@cache
def _block_products(shape: ModelShape) -> dict[str, int]:
    """Weights of one block that one token is multiplied with, by linear layer."""
    products = {}
    for name, size in block_parameter_list(shape):
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and len(size) > 1:
            products[layer] = prod(size) if len(size) == 2 else shape.topk * prod(size[1:])
    return products
