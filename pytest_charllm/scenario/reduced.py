"""The rows of a table on a machine with fewer GPUs than the table's: smaller layouts of a reduced model, by rule.

- Layout: tp is halved down to the node; then pp, dp and tp in turn, each as far as it goes, until the machine holds a
  whole number of worlds. So layouts stay as unlike each other as they were: pp and dp are what further nodes were for.
- Sharded layouts keep two data-parallel ranks, and tp gives way first: there has to be somebody to share with.
- ep is at most dp, which it partitions.
- Depth: two layers for each stage of the deepest layout, or one where two do not fit. So all layouts of a model train
  the same layers, and a step is short.
- Batch: sequences a step in proportion to the ranks, so that microbatches a stage, and the bubble, stay about what they
  were; but at least eight, which every microbatch of the study divides.

"Fits": the estimate is at most nine tenths of the catalogue's capacity, with nothing recomputed and one sequence a
microbatch, for every layout. Depth is therefore one number for a model and a machine, whatever a row switches on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import msgspec

from pytest_charllm.hardware.catalogue import Hardware
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.scenario.memory import need
from pytest_charllm.scenario.models import shape
from pytest_charllm.scenario.spec import Layout, Scenario, Sharding, Training

MEMORY_SHARE = 0.9
"""Of the capacity that a reduced model may take by the estimate, which errs by up to 10 %."""

LEAST_BATCH = 8

_LAYERS_A_STAGE = (2, 1)


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one model on one machine: each layout with its sequences a step, all with the same number of layers.

    `layers` is None where the model is no deeper than that.
    """

    layers: int | None
    rows: tuple[tuple[Layout, int | None], ...]


def reduced(
    model: str, layouts: Sequence[Layout], global_batch: int | None, hardware: Hardware, machine: Machine
) -> Reduced:
    """What `layouts` of `model`, with `global_batch` sequences a step, become on a smaller machine.

    A layout that cannot be made smaller is left out; two that become the same are one. Raises `BadInput` for an unknown
    model.
    """
    rows: dict[Layout, int | None] = {}
    for layout in layouts:
        smaller = shrunk(layout, machine)
        if smaller is not None:
            rows.setdefault(smaller, _batch(global_batch, smaller.world, layout.world))
    return Reduced(layers=_depth(model, tuple(rows), hardware), rows=tuple(rows.items()))


def shrunk(layout: Layout, machine: Machine) -> Layout | None:
    """The layout with fewer ranks, None where it does not get small enough for the machine."""
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp}
    least = {"tp": 1, "pp": 1, "dp": 1 if layout.sharding is Sharding.NONE else min(2, layout.dp)}
    while machine.gpus_per_node % degrees["tp"]:
        degrees["tp"] //= 2
    for axis in ("pp", "dp", "tp"):
        while degrees[axis] > least[axis] and _does_not_fit(degrees, layout.cp, machine):
            degrees[axis] = max(degrees[axis] // 2, least[axis])
    if _does_not_fit(degrees, layout.cp, machine):
        return None
    return msgspec.structs.replace(layout, ep=min(layout.ep, degrees["dp"]), **degrees)


def _does_not_fit(degrees: dict[str, int], cp: int, machine: Machine) -> bool:
    return machine.world % (degrees["tp"] * degrees["pp"] * degrees["dp"] * cp) != 0


def _batch(global_batch: int | None, ranks: int, of_ranks: int) -> int | None:
    """Sequences a step; None stays one microbatch a rank."""
    return None if global_batch is None else max(LEAST_BATCH, global_batch * ranks // of_ranks)


def _depth(model: str, layouts: tuple[Layout, ...], hardware: Hardware) -> int | None:
    full = shape(model).layers
    stages = lcm(*(layout.stages for layout in layouts))
    for each in _LAYERS_A_STAGE:
        depth = each * stages
        if depth >= full:
            return None
        if all(_fits(model, depth, layout, hardware) for layout in layouts):
            return depth
    return stages


def _fits(model: str, layers: int, layout: Layout, hardware: Hardware) -> bool:
    if hardware.memory_bytes is None:
        return True
    scenario = Scenario(work=Training(model=model, microbatch=1, layers=layers), layout=layout)
    return need(scenario).total <= MEMORY_SHARE * hardware.memory_bytes
