"""Long sequences: heads exchanged for sequence (Ulysses), or keys and values sent around a ring. Recomputed in full,
with head and loss on a few tokens at a time."""

import pytest

from pytest_charllm import Rows, Scenario, scenarios

TOKENS = (8192, 32768, 131072)
RANKS = {
    "*:1x1": "dp1",
    "*:1x2": "cp2+fsdp cp2+fsdp+ring",
    "*:1x4": "cp4+fsdp cp4+fsdp+ring tp2cp2",
    "*:1x8": "cp8+fsdp cp8+fsdp+ring cp4dp2+fsdp tp2cp4",
}


def within_an_hour(row: Scenario) -> bool:
    """A sequence takes the square of its length."""
    return (row.training.seq or 0) <= 32768 * row.layout.world


@scenarios(Rows("llama3-8b", RANKS, layers=8, seq=TOKENS), recompute="full", chunked_loss=True, where=within_an_hour)
def test_llama3_8b(measured):
    measured.check()


@pytest.mark.smoke
@scenarios(
    Rows("llama3-1b", {"*:1x1": "dp1", "*:1x2": "cp2", "*:1x4": "cp4", "*:1x8": "cp8"}, seq=32768),
    chunked_loss=(False, True),
)
def test_llama3_1b(measured):
    """What the logits of a whole sequence cost."""
    measured.check()


@scenarios(Rows("tiny-llama", {"cpu:1x2": "cp2"}, microbatch=2), precision="fp32", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
