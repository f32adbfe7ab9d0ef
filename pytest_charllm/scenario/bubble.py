"""How much of a step the ranks of a pipeline wait, on paper.

With stages of equal work, which spend a third of it on each of forward pass, gradients of activations and gradients of
weights, and nothing spent on sending; p ranks, v stages each, m microbatches, in thirds of a stage's work on one of
them:

| schedule | work of a rank | waiting | source |
|---|---|---|---|
| gpipe, 1f1b | 3 m | 3 (p - 1) | Huang et al. 2019, Narayanan et al. 2021 |
| interleaved-1f1b | 3 v m | 3 (p - 1) + 3 (v - 1) max(0, p - m) | Narayanan et al. 2021, who ask for m >= p |
| zbv | 6 m | max(p - 1, 4 (p - 1) - 2 (m - 1)) | torch's order of work, run through |
| dualpipev | 6 m | p - 1 | the same; m >= 2 p |

1f1b waits as long as gpipe and holds fewer microbatches; so it does with fewer microbatches than stages. The V shapes
are "zero bubble" but for the first microbatch's way to the last rank.
"""

from __future__ import annotations

from pytest_charllm.scenario.spec import Layout
from pytest_charllm.scenario.stages import schedule_of


def bubble_fraction(layout: Layout, microbatches: int) -> float:
    """Waiting as a share of the step, 0 to 1, by the formulas above; `microbatches` a step on each data-parallel rank.

    The layout must pass the feasibility rules: uneven stages wait longer, and are not looked at.
    """
    name = schedule_of(layout)
    if name is None:
        return 0.0
    ahead, stages = layout.pp - 1, layout.stages_per_rank
    work = 3 * stages * microbatches
    if name == "zbv":
        waiting = max(ahead, 4 * ahead - 2 * (microbatches - 1))
    elif name == "dualpipev":
        waiting = ahead
    else:
        waiting = 3 * ahead + 3 * (stages - 1) * max(0, layout.pp - microbatches)
    return waiting / (work + waiting)
