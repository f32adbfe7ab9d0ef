"""Data parallelism and accumulation."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

from pytest_charllm.engines.native.step import Step

MUTANTS = {
    "unweighted-microbatches": lambda: patch(
        "pytest_charllm.engines.native.step.microbatch_weight", lambda accumulation: 1.0
    ),
    "unreduced-gradients": lambda: patch.object(Step, "_reducing", lambda self, last: self.model.no_sync()),
    "reduced-every-microbatch": lambda: patch.object(Step, "_reducing", lambda self, last: nullcontext()),
}
