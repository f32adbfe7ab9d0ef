"""LoRA."""

from __future__ import annotations

from unittest.mock import patch

from pytest_charllm.engines.native import model
from pytest_charllm.scenario.models import ModelShape
from pytest_charllm.scenario.placement import is_summed_over_tp


def _own_rows_alone(shape: ModelShape, name: str, sequence_parallel: bool) -> bool:
    """A rank's rows of `up` are all that its `down` learns from."""
    return not name.endswith(".down") and is_summed_over_tp(shape, name, sequence_parallel)


MUTANTS = {
    "everything-trained": lambda: patch.object(model, "is_trained", lambda shape, name: True),
    "own-rows-alone": lambda: patch("pytest_charllm.engines.native.gradients.is_summed_over_tp", _own_rows_alone),
}
