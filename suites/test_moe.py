"""Experts: over how many ranks, and with which routing? By default every expert gets the same number of tokens, so that
time does not follow chance; real routing is what the router says."""

import pytest

from pytest_charllm import Rows, scenarios

from . import trends

RANKS = {
    "*:1x1": "dp1",
    "*:1x2": "dp2 dp2+ep2",
    "*:1x4": "dp4 dp4+ep2 dp4+ep4",
    "*:1x8": "dp8 dp8+ep2 dp8+ep4 dp8+ep8 dp8+ep8+fsdp tp2dp4+ep4",
}


@pytest.mark.smoke
@scenarios(Rows("mixtral-8x7b", RANKS, layers=2), real_routing=(False, True))
def test_mixtral_8x7b(measured):
    measured.check()


@scenarios(Rows("mixtral-8x7b", RANKS, layers=2), real_routing=True)
def test_routing_does_not_pay(measured, charllm):
    """Experts with more tokens than others make ranks wait: at best it is as fast as dealing them out evenly."""
    even = charllm.measure(trends.with_options(measured.scenario, real_routing=False))
    trends.at_most("tokens/s/GPU", measured.value("throughput"), 1.02 * even.value("throughput"))


@scenarios(Rows("tiny-mixtral", {"cpu:1x2": "dp2+ep2"}, microbatch=2), precision="fp32", compile=False, speed=False)
def test_tiny(measured):
    measured.check()
