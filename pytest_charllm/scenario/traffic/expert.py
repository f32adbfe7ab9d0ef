"""Expert parallelism: every token's copies go to the ranks of its experts and come back."""

from __future__ import annotations

from pytest_charllm.scenario.models import shape_of
from pytest_charllm.scenario.spec import Recompute, Scenario
from pytest_charllm.scenario.traffic.calls import Call, Held, copied_tokens, layers_of


def calls(scenario: Scenario, held: Held) -> list[Call]:
    """Per microbatch and layer two all-to-all, two back in the backward pass, and the first two again under
    recomputation: what came back is kept for the gradient of its weights, not recomputed from anything near.

    Sizes are those of balanced routing, by which the counted step goes. With sequence parallelism a rank sends the
    copies of its own tokens.
    """
    layout = scenario.layout
    if layout.ep == 1:
        return []
    senders = layout.tp if layout.sequence_parallel else 1
    size = copied_tokens(scenario) // senders * shape_of(scenario).hidden * scenario.element_bytes
    passes = 4 if scenario.options.recompute is Recompute.NONE else 6
    return [Call("all-to-all", "ep", size)] * (passes * layers_of(held) * scenario.accumulation)
