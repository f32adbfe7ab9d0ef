"""Pipeline parallelism: microbatches that weigh too much, tied weights that drift apart, layers in the wrong stage."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from pytest_charllm.engines.native.receiving import Buffers
from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.stages import Stage, stages, stages_at

MUTANTS = {
    "unweighted-microbatches-of-a-pipeline": lambda: patch(
        "pytest_charllm.engines.native.pipeline_step.microbatch_weight", lambda accumulation: 1.0
    ),
    "tied-gradients-apart": lambda: patch("pytest_charllm.engines.native.gradients.sum_tied"),
    "tied-on-one-rank-apart": lambda: patch("pytest_charllm.engines.native.gradients.sum_tied"),
    "too-few-buffers": lambda: patch(
        "pytest_charllm.engines.native.pipeline.buffers_of_looped", lambda order, layout, stage: Buffers(1, 1)
    ),
    "swapped-layers": lambda: patch("pytest_charllm.engines.native.parallelize.held_stages", _swapped),
}


def _swapped(layout: Layout, layers: int, rank: int) -> tuple[Stage, ...]:
    """The ends stay where they are, the layers between them are those of the opposite stage."""
    every = stages(layout, layers)
    return tuple(replace(every[number], layers=every[-1 - number].layers) for number in stages_at(layout, rank))
