"""Pipelines on paper: who has which layers, which combinations cannot run, how many microbatches are in flight, and how
long ranks wait. The last two are held against the order of work that torch's own schedules lay down."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario import Layout, Options, Scenario, Training
from pytest_charllm.scenario.bubble import bubble_fraction
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.layout import SCHEDULES, alternating_stages
from pytest_charllm.scenario.models import parameter_list, shape
from pytest_charllm.scenario.stages import held_parameters, held_stages, in_flight, place_of, stages, stages_at

LOOPED = {
    "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
LAYOUTS = [
    *[Layout(pp=pp, schedule=name) for name in ("zbv", "dualpipev") for pp in (2, 3, 4)],
    *[Layout(pp=pp, schedule="interleaved-1f1b", virtual_stages=v) for pp in (2, 3, 4) for v in (2, 3)],
]


@given(schedule=st.sampled_from(SCHEDULES), pp=st.integers(2, 5), tp=st.integers(1, 2), dp=st.integers(1, 2))
def test_every_parameter_is_in_one_place(schedule: str, pp: int, tp: int, dp: int) -> None:
    """A layer that two stages have, or none, still trains; only its loss is another's."""
    layout = Layout(tp=tp, pp=pp, dp=dp, schedule=schedule)
    model = shape("llama3-8b", 2 * layout.stages)
    names = [name for rank in range(0, layout.world, tp * dp)
             for name, _ in held_parameters(model, held_stages(layout, model.layers, rank))]  # fmt: skip
    assert sorted(names) == sorted(name for name, _ in parameter_list(model))
    for place in range(pp):
        assert all(place_of(layout, number) == place for number in stages_at(layout, place))


def test_the_head_of_a_tied_model_is_a_copy_in_the_last_stage() -> None:
    """Its gradient travels and its optimizer state takes memory, though it is no parameter of the model."""
    model = shape("tiny-gpt")
    ends = [held_stages(Layout(pp=2, schedule=name), model.layers, 0) for name in ("1f1b", "zbv")]
    copies = [[name for name, _ in held_parameters(model, held)].count("head.weight") for held in ends]
    assert copies == [0, 1]


def test_a_v_comes_back_to_where_it_began() -> None:
    """The stages next to each other on the last rank hand over without sending; a wrong order would send to itself."""
    layout = Layout(pp=3, schedule="zbv", stage_layers=(1, 2, 3, 4, 5, 6))
    assert [stages_at(layout, place) for place in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert [stage.layers for stage in stages(layout, 21)][3:5] == [range(6, 10), range(10, 15)]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("llama3-8b.6L.pp4+interleaved-1f1b.mb1", "pp: 6 layers are too few for the 8 stages of interleaved-1f1b"),
        ("llama3-8b.pp4+interleaved-1f1b+v3.mb1", "pp: 32 layers do not divide by the 12 stages of interleaved-1f1b"),
        ("llama3-8b.pp2+zbv+s16-16.mb1.eager", "pp: stage_layers names 2 stages, zbv on pp2 has 4"),
        ("llama3-8b.pp4+interleaved-1f1b.mb1.gb9", "schedule: 9 microbatches do not divide into interleaved-1f1b's"),
        ("llama3-8b.pp4+dualpipev.mb1.gb7.eager", "schedule: dualpipev on pp4 needs 8 microbatches a step, not 7"),
        ("llama3-8b.pp4+zbv.mb1.gb8", "schedule: zbv takes the backward pass apart, a compiled block"),
        ("llama3-8b.pp4+zbv.mb1.gb8.fp8.eager", "schedule: zbv takes the backward pass apart, an fp8 layer"),
        ("llama3-8b.pp4+zbv.mb1.gb8.recompute-full.eager", "schedule: zbv takes the backward pass apart, and would"),
        ("llama3-8b.pp2dp4+fsdp+interleaved-1f1b+v4.mb1.gb8", "schedule: fsdp keeps at most 3 of the 4 stages"),
    ],
)  # fmt: skip
def test_what_a_pipeline_cannot_do_is_refused_by_rule(key: str, reason: str) -> None:
    """torch would raise in the ranks, minutes later, or train and do more work than is on paper."""
    broken = infeasible(parse_key(key), CATALOGUE["h200-sxm"], parse_assume("h200:1x8"))
    assert str(broken).startswith(reason)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.schedule}-{layout.pp}-{layout.virtual_stages}")
def test_rules_of_microbatches_are_torchs(layout: Layout) -> None:
    """A rule stricter than torch hides scenarios, a laxer one lets ranks crash."""
    for microbatches in range(1, 3 * layout.pp + 2):
        work = Training(model="llama3-8b", layers=layout.stages, microbatch=1, global_batch=microbatches)
        scenario = Scenario(work=work, layout=layout, options=Options(compile=False))
        broken = infeasible(scenario, CATALOGUE["cpu"], parse_assume(f"cpu:1x{layout.pp}"))
        try:
            order_of(layout, microbatches)
        except ValueError:
            assert broken is not None
            assert broken.rule == "schedule"
        else:
            assert broken is None


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.schedule}-{layout.pp}-{layout.virtual_stages}")
def test_formulas_are_what_torchs_order_comes_to(layout: Layout) -> None:
    """Memory and bubbles by formula are of no use for another order than the one that runs."""
    for microbatches in range(1, 3 * layout.pp + 2):
        try:
            order = order_of(layout, microbatches)
        except ValueError:
            continue
        assert [peak(actions) for actions in order] == [
            in_flight(layout, place, microbatches) for place in range(layout.pp)
        ]
        assert waiting_share(order, layout.stages) == pytest.approx(bubble_fraction(layout, microbatches))


def test_bubbles_of_one_stage_a_rank() -> None:
    """The published formula, (p - 1) / (m + p - 1), of both; nothing waits without a pipeline."""
    for schedule in ("gpipe", "1f1b", None):
        assert bubble_fraction(Layout(pp=4, schedule=schedule), 16) == pytest.approx(3 / 19)
    assert bubble_fraction(Layout(dp=4), 16) == 0.0


def test_alternating_stages_are_those_of_the_study() -> None:
    """80 layers over 32 stages leave 17 for the last one, as its artifact computes."""
    assert alternating_stages(96, 4) == (25, 23, 25, 23)
    depths = alternating_stages(80, 32)
    assert (depths[:4], depths[-1], sum(depths)) == ((3, 1, 3, 1), 17, 80)
    with pytest.raises(BadInput, match="32 layers do not alternate over 32 stages"):
        alternating_stages(32, 32)


def order_of(layout: Layout, microbatches: int) -> list[list[Any]]:
    """What every rank does, one after the other, as torch lays it down without a process group."""
    assert layout.schedule is not None
    stage = SimpleNamespace(
        submod=None, num_stages=layout.stages, group_size=layout.pp, group_rank=0, stage_index=0, is_last=False
    )
    schedule = LOOPED[layout.schedule](
        [stage] * layout.stages_per_rank, microbatches, loss_fn=lambda output, target: output
    )
    return [list(flat(schedule.pipeline_order[rank])) for rank in range(layout.pp)]


def flat(actions: list[Any]) -> Iterator[Any]:
    for action in actions:
        if action is not None:
            yield from action.sub_actions or (action,)


def peak(actions: list[Any]) -> int:
    """Forward passes less backward passes, where the most: activations go with the gradients of weights."""
    held = most = 0
    for action in actions:
        held += {schedules.FORWARD: 1, schedules.BACKWARD_INPUT: 0}.get(action.computation_type, -1)
        most = max(most, held)
    return most


def waiting_share(order: list[list[Any]], count: int) -> float:
    """Of a step in which a forward pass and each half of a backward pass take one unit, and sending takes none."""
    done: dict[tuple[Any, int, int], int] = {}
    clock, at = [0] * len(order), [0] * len(order)
    while any(at[rank] < len(actions) for rank, actions in enumerate(order)):
        for rank, actions in enumerate(order):
            while at[rank] < len(actions):
                stage, kind, number = actions[at[rank]][:3]
                needs = list(needed(kind, stage, number, count))
                if any(each not in done for each in needs):
                    break
                clock[rank] = max([clock[rank], *(done[each] for each in needs)])
                clock[rank] += 2 if kind == schedules.FULL_BACKWARD else 1
                whole = kind == schedules.FULL_BACKWARD
                done[schedules.BACKWARD_INPUT if whole else kind, stage, number] = clock[rank]
                at[rank] += 1
    busy = sum(2 if action.computation_type == schedules.FULL_BACKWARD else 1 for each in order for action in each)
    return 1 - busy / (len(order) * max(clock))


def needed(kind: Any, stage: int, number: int, count: int) -> Iterator[tuple[Any, int, int]]:
    if kind == schedules.FORWARD:
        if stage:
            yield schedules.FORWARD, stage - 1, number
    elif kind == schedules.BACKWARD_WEIGHT:
        yield schedules.BACKWARD_INPUT, stage, number
    elif stage == count - 1:
        yield schedules.FORWARD, stage, number
    else:
        yield schedules.BACKWARD_INPUT, stage + 1, number
