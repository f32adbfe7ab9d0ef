"""What is judged of a collective alone on GPUs: one number a message size, so that the size that moved has a name.

On a CPU nothing is: gloo's threads share their cores with everything else.
"""

from __future__ import annotations

from pytest_charllm.judge.tolerances import Tolerance
from pytest_charllm.records.curve import LATENCY_BOUND, judged
from pytest_charllm.scenario import Collective
from pytest_charllm.scenario.collective import sizes_of

LATENCY = Tolerance(floor=0.15, cap=0.40, prior_sigma=0.04)
BANDWIDTH = Tolerance(floor=0.05, cap=0.15, prior_sigma=0.015)
"""Not measured on any GPU yet. Of changes that people reported of NCCL and drivers, the smallest would be seen: -9 % of
bandwidth at large messages (nccl-tests 297), some 10 us of 33 below 32 KiB (nccl 2094)."""


def collective_rules(work: Collective) -> dict[str, Tolerance]:
    """By metric, the smallest message first."""
    return {judged(size): LATENCY if size <= LATENCY_BOUND else BANDWIDTH for size in sizes_of(work)}
