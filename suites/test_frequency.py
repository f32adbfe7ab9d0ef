"""Layouts against SM clocks: time, energy, and which of them nothing else beats in both.

Only with `--charllm-sm-clock MHZ[,MHZ]`, and the right to lock clocks. Every point is judged against its own record;
the front is told below the table.
"""

from pytest_charllm import Rows, scenarios

SMALL = {"*:1x1": "dp1", "*:1x2": "dp2 dp2+fsdp tp2", "*:1x4": "dp4 tp2dp2 tp4", "*:1x8": "dp8 tp2dp4 tp4dp2 tp8"}
LARGE = {"*:1x8": "dp8+fsdp tp2dp4+fsdp tp8 tp2pp2dp2 pp8"}


@scenarios(Rows("llama3-1b", SMALL, global_batch=32), given="sm_clock")
def test_llama3_1b(measured):
    measured.check()


@scenarios(Rows("llama3-8b", {"*:1x1": "dp1"}, layers=8), given="sm_clock")
@scenarios(Rows("llama3-8b", LARGE, global_batch=64), given="sm_clock", recompute="selective")
def test_llama3_8b(measured):
    measured.check()
