"""Pipeline stages: which layers each one has, and which rank has which of them.

| schedule | stages of the r-th of pp ranks |
|---|---|
| gpipe, 1f1b | r |
| interleaved-1f1b | r, r + pp, r + 2 pp, ... |
| zbv, dualpipev | r, 2 pp - 1 - r: the model turns round on the last rank, and ends where it began |
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from pytest_charllm.scenario.models import ModelShape, parameter_list
from pytest_charllm.scenario.spec import DEFAULT_SCHEDULE, V_SHAPES, Layout

TIED = ("embed.weight", "head.weight")
"""Of a tied model in a pipeline: two copies of the same weights, by their names in the first and the last stage."""


@dataclass(frozen=True)
class Stage:
    """Consecutive layers of the model. The first stage has the embedding too, the last one norm and head."""

    layers: range
    number: int = 0
    first: bool = True
    last: bool = True

    def has(self, name: str) -> bool:
        """Whether a parameter of `parameter_list` is among this stage's."""
        where, _, rest = name.partition(".")
        if where == "blocks":
            return int(rest.partition(".")[0]) in self.layers
        return self.last if where in ("norm", "head") else self.first


def schedule_of(layout: Layout) -> str | None:
    """The schedule by name; None without a pipeline."""
    return (layout.schedule or DEFAULT_SCHEDULE) if layout.pp > 1 else None


def stages(layout: Layout, layers: int) -> tuple[Stage, ...]:
    """All stages of a model of so many layers, in its order. The layout must pass the rule of feasibility: layers that
    do not divide are lost."""
    count = layout.stages
    depths = layout.stage_layers or (layers // count,) * count
    ends = list(accumulate(depths))
    return tuple(
        Stage(range(end - depth, end), number, first=number == 0, last=number == count - 1)
        for number, (depth, end) in enumerate(zip(depths, ends, strict=True))
    )


def pipeline_rank(layout: Layout, rank: int) -> int:
    """A rank's place in the pipeline: tp, cp and dp are numbered faster."""
    return rank // (layout.tp * layout.cp * layout.dp)


def stages_at(layout: Layout, place: int) -> tuple[int, ...]:
    """Numbers of the stages at a place in the pipeline, in the order of the model."""
    if layout.schedule in V_SHAPES:
        return (place, 2 * layout.pp - 1 - place)
    return tuple(range(place, layout.stages, layout.pp))


def place_of(layout: Layout, stage: int) -> int:
    """Inverse of `stages_at`."""
    if layout.schedule in V_SHAPES:
        return min(stage, 2 * layout.pp - 1 - stage)
    return stage % layout.pp


def held_stages(layout: Layout, layers: int, rank: int) -> tuple[Stage, ...]:
    """The stages of a rank, in the order of the model."""
    every = stages(layout, layers)
    return tuple(every[number] for number in stages_at(layout, pipeline_rank(layout, rank)))


def in_flight(layout: Layout, place: int, microbatches: int) -> int:
    """The most microbatches of which a place in the pipeline holds activations at once, added up over its stages.

    | schedule | microbatches |
    |---|---|
    | gpipe | m |
    | 1f1b | min(m, p - i) |
    | interleaved-1f1b | min(v m, (v - 1) r + 2 (p - 1 - i) + 1), r microbatches in a round |
    | zbv | min(2 m, 2 p, m + 1 + i) |
    | dualpipev | 2 p + 1 |

    for the i-th of p ranks with v stages each, and m microbatches a step. Those of the last two are what torch's order
    of work comes to.
    """
    name, pp, virtual = schedule_of(layout), layout.pp, layout.stages_per_rank
    if name == "gpipe":
        return microbatches
    if name == "interleaved-1f1b":
        a_round = microbatches // max(1, microbatches // pp)
        return min(virtual * microbatches, (virtual - 1) * a_round + 2 * (pp - 1 - place) + 1)
    if name == "zbv":
        return min(2 * microbatches, 2 * pp, microbatches + 1 + place)
    if name == "dualpipev":
        return 2 * pp + 1
    return min(microbatches, pp - place)


def held_parameters(shape: ModelShape, held: tuple[Stage, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """(name, full shape) of what these stages have, stage by stage in order of use; a copy of a tied head is under the
    name that it has in its stage."""
    rows = []
    for stage in held:
        rows += [(name, size) for name, size in parameter_list(shape) if stage.has(name)]
        if shape.tied and stage.last and not stage.first:
            rows.append(("head.weight", (shape.vocab, shape.hidden)))
    return rows
