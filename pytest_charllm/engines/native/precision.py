"""In which numbers a precision computes."""

from __future__ import annotations

import torch

from pytest_charllm.scenario import Precision


def compute_dtype(precision: Precision) -> torch.dtype:
    """Of activations, and so of what travels between stages; the 8-bit floats of fp8 stay inside its layers."""
    return torch.float32 if precision is Precision.FP32 else torch.bfloat16
