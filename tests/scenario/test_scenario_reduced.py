"""Rows of a large machine on a small one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.hardware import Machine
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.layout import format_layout, parse_layout
from pytest_charllm.scenario.reduced import reduced, shrunk
from pytest_charllm.scenario.spec import Layout, Scenario, Sharding, Training

powers = st.sampled_from([1, 2, 4, 8, 16])
machines = st.builds(
    Machine, variant=st.just("h200-sxm"), nodes=st.integers(1, 6), gpus_per_node=st.sampled_from([1, 2, 3, 4, 6, 8])
)
layouts = st.builds(Layout, tp=st.sampled_from([1, 2, 4, 8]), pp=powers, dp=powers)


@pytest.mark.parametrize(
    ("machine", "rows"),
    [
        ("h200:2x8", "tp2pp8 tp4pp4 tp8pp2 pp16 tp8dp2+fsdp"),
        ("h200:1x8", "tp2pp4 tp4pp2 tp8 pp8 tp4dp2+fsdp"),
        ("h200:1x2", "tp2 tp2 tp2 pp2 dp2+fsdp"),
        ("h200:4x4", "tp2pp8 tp4pp4 tp4pp4 pp16 tp4dp4+fsdp"),
        ("h200:1x6", "tp2 tp2 tp2 pp2 dp2+fsdp"),
    ],
)
def test_nodes_are_given_up_before_tensor_parallelism(machine: str, rows: str) -> None:
    """What made a layout itself would be the first to go, and all of a table would become one row."""
    table = [parse_layout(text) for text in ["tp2pp16", "tp4pp8", "tp8pp4", "pp32", "tp8dp4+fsdp"]]
    found = [shrunk(layout, parse_assume(machine)) for layout in table]
    assert [format_layout(layout) for layout in found if layout] == rows.split()


def test_nobody_to_share_with_is_no_row() -> None:
    """FSDP on one GPU is INFEASIBLE, and would stand in every list of a single GPU."""
    assert shrunk(parse_layout("tp8dp4+fsdp"), parse_assume("h200:1x1")) is None
    assert shrunk(parse_layout("cp2dp2"), parse_assume("h200:1x1")) is None


@given(layout=layouts, ep=st.sampled_from([1, 2, 4]), sharded=st.booleans(), machine=machines)
def test_what_comes_out_can_be_run(layout: Layout, ep: int, sharded: bool, machine: Machine) -> None:
    """A rule of feasibility that the smaller row breaks: it would be a skip on every machine of that size."""
    sharding = Sharding.FSDP if sharded and layout.dp > 1 else Sharding.NONE
    model = "mixtral-8x22b" if ep > 1 else "llama3-8b"
    start = Layout(tp=layout.tp, pp=layout.pp, dp=layout.dp, ep=min(ep, layout.dp), sharding=sharding)
    hardware = CATALOGUE[machine.variant]
    smaller = reduced(model, [start], 128, hardware, machine)
    for row, batch in smaller.rows:
        work = Training(model=model, microbatch=1, layers=smaller.layers, global_batch=batch)
        broken = infeasible(Scenario(work=work, layout=row), hardware, machine)
        assert broken is None or broken.rule in ("memory", "tp", "pp", "batch"), broken
        assert row.world <= machine.world
        assert row.world <= start.world
        assert machine.world % row.world == 0


def test_depth_is_the_models_and_follows_memory() -> None:
    """Layouts of different depth cannot be compared; a card with less memory takes one layer a stage, not none."""
    table = [parse_layout(text) for text in ("tp4pp2", "pp8")]
    depth = {
        variant: reduced("gpt3-175b", table, 128, CATALOGUE[variant], parse_assume(f"{variant}:1x8")).layers
        for variant in ("h200-sxm", "mi250")
    }
    assert depth == {"h200-sxm": 16, "mi250": 8}


def test_a_model_that_is_no_deeper_stays_whole() -> None:
    """A key with all of the model's layers would be another name for the same work."""
    assert reduced("llama3-1b", [Layout(pp=8)], 128, CATALOGUE["h200-sxm"], parse_assume("h200:1x8")).layers is None


def test_batch_shrinks_with_the_ranks_and_stays_divisible() -> None:
    """A step of one GPU would take as long as that of 32; and below eight the sweep of microbatches had no rows."""
    machine = parse_assume("h200:1x8")
    hardware = CATALOGUE[machine.variant]
    assert reduced("gpt3-175b", [Layout(pp=32)], 128, hardware, machine).rows == ((Layout(pp=8), 32),)
    assert reduced("gpt3-175b", [Layout(pp=32)], 16, hardware, machine).rows == ((Layout(pp=8), 8),)
    assert reduced("gpt3-175b", [Layout(pp=32)], None, hardware, machine).rows == ((Layout(pp=8), None),)
