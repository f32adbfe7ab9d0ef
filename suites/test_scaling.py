"""What is lost with every further rank? Weak scaling (the same work a rank), strong scaling (the same work in all),
and a node's links against those between nodes."""

import pytest

from pytest_charllm import Rows, scenarios

from . import trends

NODE = {"*:1x1": "dp1", "*:1x2": "dp1 dp2", "*:1x4": "dp1 dp2 dp4", "*:1x8": "dp1 dp2 dp4 dp8"}
NODES = {
    "*:2x8": "dp1 dp2 dp4 dp8 dp16",
    "*:4x8": "dp1 dp2 dp4 dp8 dp16 dp32",
    "*:8x8": "dp1 dp2 dp4 dp8 dp16 dp32 dp64",
}


@pytest.mark.smoke
@scenarios(Rows("llama3-1b", NODE | NODES, microbatch=2))
def test_weak(measured):
    measured.check()


@scenarios(Rows("llama3-1b", NODE, global_batch=16), Rows("llama3-1b", NODES, global_batch=64))
def test_strong(measured):
    measured.check()


UP = {"*:1x2": "dp1 tp2", "*:1x4": "dp1 tp2 tp4", "*:1x8": "dp1 tp2 tp4 tp8"}


@scenarios(Rows("llama3-8b", UP, layers=8, global_batch=8))
def test_up(measured):
    """One microbatch on more and more GPUs of a node."""
    measured.check()


@scenarios(
    Rows(
        "llama3-8b",
        {
            "*:2x8": "dp16+fsdp dp16+hsdp2 tp8dp2 pp2dp8",
            "*:4x8": "dp32+fsdp dp32+hsdp4 tp8dp4 pp4dp8",
            "*:8x8": "dp64+fsdp dp64+hsdp8 tp8dp8 pp8dp8",
        },
        global_batch=128, shares_optimizer=True,
    )
)  # fmt: skip
def test_up_against_out(measured):
    """What crosses nodes: all of it, replicas' gradients, shared gradients, or activations alone."""
    measured.check()


@scenarios(Rows("llama3-1b", NODE, microbatch=2), where=lambda row: row.layout.world > 1)
def test_weak_scaling_keeps_its_tokens(measured, charllm):
    """Per GPU, within a node: gradients are reduced beside the backward pass."""
    alone = charllm.measure("llama3-1b.mb2")
    trends.at_least("tokens/s/GPU over one GPU's", measured.value("throughput") / alone.value("throughput"), 0.8)


@scenarios(Rows("tiny-llama", {"cpu:1x2": "dp1"}, microbatch=2), precision="fp32", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
