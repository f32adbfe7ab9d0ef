"""Context parallelism: what goes around every attention."""

from __future__ import annotations

from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.spec import Recompute, Scenario
from pytest_charllm.scenario.traffic.calls import FP32, Call, Held, layers_of, local_tokens


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """Per microbatch and layer. Ulysses: queries, keys and values in one all-to-all and the output in another, both
    back in the backward pass, and again under recomputation, since what is kept of the attention is its result alone.

    A ring of n ranks passes keys and values on n - 1 times in each pass, and their gradients in fp32 n times, the last
    time home. Its forward pass runs again only where the result of attention is not kept.
    """
    layout, shape, recompute = scenario.layout, shape_of(scenario), scenario.options.recompute
    if layout.cp == 1:
        return []
    tokens = local_tokens(scenario)
    out, keys_values = tokens * shape.hidden // layout.tp, 2 * tokens * shape.kv_width // layout.tp
    if layout.ring:
        passes = 3 if recompute is Recompute.FULL else 2
        sizes = [scenario.element_bytes * keys_values] * (passes * (layout.cp - 1))
        sizes += [FP32 * keys_values] * layout.cp
        attention = [Call(op, "cp", size) for size in sizes for op in ("send", "recv")]
    else:
        passes = 2 if recompute is Recompute.NONE else 3
        attention = [Call("all-to-all", "cp", scenario.element_bytes * size) for size in (out + keys_values, out)]
        attention *= passes
    return attention * (layers_of(held) * scenario.accumulation)
