"""Which launches are made, in what order, and what each is asked to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.campaign.settings import CampaignProgress, Planned, by_key
from pytest_charllm.records import Fault, Pass, Verdict
from pytest_charllm.scenario.key import parse_key

A, B, C, D, E = (f"llama3-1b.mb{n}" for n in (1, 2, 4, 8, 16))
TWO = "llama3-1b.dp2.mb1"
TINY, TINY_2 = "tiny-llama.dp2.mb2.fp32.eager", "tiny-gpt.dp2.mb2.fp32.eager"


def timed(*launches: tuple[str, int]) -> list[str]:
    return [f"{key}.timed-{n}" for key, n in launches]


def test_neighbours_take_turns(lab):
    """All launches of one scenario in a row would give the first a cool card and the last a hot one."""
    campaign = lab.open(A, B, C, D, E, launches=2)
    campaign.evidence(parse_key(A))
    first_four = timed((A, 1), (B, 1), (C, 1), (D, 1), (A, 2), (B, 2), (C, 2), (D, 2))
    assert lab.launcher.ids == first_four
    for key in (B, C, D):
        campaign.evidence(parse_key(key))
    assert lab.launcher.ids == first_four
    campaign.evidence(parse_key(E))
    assert lab.launcher.ids == first_four + timed((E, 1), (E, 2))


def test_the_group_starts_at_what_was_asked(lab):
    """Tests may run in another order than planned: what is asked for is measured, and nothing twice."""
    campaign = lab.open(A, B, C, D, interleave=2, launches=1)
    campaign.evidence(parse_key(C))
    assert lab.launcher.ids == timed((C, 1), (D, 1))
    campaign.evidence(parse_key(B))
    assert lab.launcher.ids == timed((C, 1), (D, 1), (B, 1))
    campaign.evidence(parse_key(A))
    assert lab.launcher.ids == timed((C, 1), (D, 1), (B, 1), (A, 1))


def test_each_has_as_many_turns_as_it_needs(lab):
    """One on record needs one launch; its neighbours' further launches do not wait for it, nor it for them."""
    lab.put_on_record(A)
    lab.open(A, B).evidence(parse_key(A))
    assert lab.launcher.ids == timed((A, 1), (B, 1), (B, 2), (B, 3))


@pytest.mark.parametrize(
    ("recorded_w", "launches", "expected"),
    [(None, None, 3), (700.0, None, 1), (600.0, None, 3), (None, 2, 2), (700.0, 2, 2), (600.0, 2, 2)],
    ids=lambda value: str(value),
)
def test_first_launches_on_a_gpu(lab, make, recorded_w, launches, expected):
    """A baseline of another power limit is none: one launch would be too few to go on record."""
    if recorded_w is not None:
        lab.put_on_record(A, machine=make.h200(power_limit_w=recorded_w))
    evidence = lab.open(A, launches=launches).evidence(parse_key(A))
    assert len(lab.launcher.ids) == len(evidence.rounds[0]) == expected


@pytest.mark.parametrize(("recorded", "expected"), [(False, 5), (True, 1)])
def test_first_launches_on_a_cpu(lab, make, recorded, expected):
    """Five to go on record, one to be held against it, after a diagnostic pass in either case."""
    if recorded:
        lab.put_on_record(TINY, machine=make.CPU)
    lab.open(TINY, machine=make.CPU).evidence(parse_key(TINY))
    assert lab.launcher.ids == [f"{TINY}.diagnostic-1", *timed(*((TINY, n) for n in range(1, expected + 1)))]


@pytest.mark.parametrize("launches", [None, 2])
def test_strict_checks_need_no_timed_launch(lab, make, launches):
    """Not in the first round, and not because the judge misses launches that ``--charllm-launches`` asked for."""
    campaign = lab.open(Planned(parse_key(TINY), speed=False), machine=make.CPU, launches=launches)
    assert campaign.judge(parse_key(TINY)).verdict is Verdict.PASS
    assert lab.launcher.ids == [f"{TINY}.diagnostic-1"]


def test_on_a_gpu_speed_is_always_measured(lab):
    """There is no diagnostic pass there: without timed launches nothing at all would be looked at."""
    lab.open(Planned(parse_key(A), speed=False)).evidence(parse_key(A))
    assert lab.launcher.ids == timed((A, 1), (A, 2), (A, 3))


def test_diagnostic_passes_come_first(lab, make):
    """A scenario that computes the wrong thing is known before time is spent on its neighbours' speed."""
    lab.open(TINY, TINY_2, machine=make.CPU, launches=1).evidence(parse_key(TINY))
    assert lab.launcher.ids == [f"{TINY}.diagnostic-1", f"{TINY_2}.diagnostic-1", *timed((TINY, 1), (TINY_2, 1))]


def test_one_measurement_serves_every_test_that_asks(lab):
    """Two tests of one key must see the same numbers, and cost one measurement."""
    campaign = lab.open(A, Planned(parse_key(A), speed=False), A)
    evidence = campaign.evidence(parse_key(A))
    judgement = campaign.judge(parse_key(A))
    assert campaign.evidence(parse_key(A)) is evidence
    assert campaign.judge(parse_key(A)) is judgement
    assert lab.launcher.ids == timed((A, 1), (A, 2), (A, 3))
    assert campaign.judgements == [judgement]


def test_what_nobody_planned_is_launched_on_demand(lab):
    """A test of one's own names its scenario only when it runs."""
    campaign = lab.open(A, launches=1)
    campaign.evidence(parse_key(B))
    assert lab.launcher.ids == timed((B, 1))


@given(st.lists(st.builds(Planned, st.sampled_from([*map(parse_key, (A, B, C))]), st.booleans())))
def test_merging_plans(planned):
    """One entry a key in order of first mention; a test for speed is not lost to one without, in either order."""
    merged = list(by_key(planned).values())
    assert [item.scenario for item in merged] == list(dict.fromkeys(item.scenario for item in planned))
    for item in merged:
        assert item.speed is any(other.speed for other in planned if other.scenario == item.scenario)


def test_what_a_launch_is_asked(lab, make):
    """Tier, seed, source and the devices by UUID, as many as there are ranks, each launch in a folder of its own."""
    campaign = lab.open(A, TWO, machine=make.h200(gpus=2), launches=1, seed=7, source="simulated:h200")
    campaign.evidence(parse_key(A))
    one, two = lab.launcher.requests
    assert (one.device_uuids, two.device_uuids) == (("GPU-0",), ("GPU-0", "GPU-1"))
    assert one.window == campaign.settings.tier.window
    assert (one.seed, one.source, one.machine) == (7, "simulated:h200", campaign.settings.machine)
    assert one.directory == campaign.run.path / "launches" / A / "timed-1"
    assert one.directory != two.directory


@pytest.mark.parametrize(("on_cpu", "source"), [(False, "nvml"), (True, "cpu")])
def test_telemetry_source_of_the_machine(lab, make, on_cpu, source):
    """The NVML sampler cannot start on a machine without a driver."""
    key = TINY if on_cpu else A
    lab.open(key, machine=make.CPU if on_cpu else None, launches=1).evidence(parse_key(key))
    assert {request.source for request in lab.launcher.requests} == {source}


def test_faults_stay_out_of_the_diagnostic_pass(lab, make):
    """It proves that the work is right; an injected slowdown must turn the speed red and nothing else."""
    fault = Fault(name="slowdown", value=0.1)
    campaign = lab.open(TINY, machine=make.CPU, launches=1, faults=(fault,))
    evidence = campaign.evidence(parse_key(TINY))
    asked = {request.pass_: request.faults for request in lab.launcher.requests}
    assert asked == {Pass.DIAGNOSTIC: (), Pass.TIMED: (fault,)}
    assert [evidence.aside.injected, evidence.measurements[0].injected] == [False, True]


def test_progress_tells_launch_i_of_n(lab, make):
    """The line on the terminal is all that is seen of a run for minutes; its speed was of both ranks, the table's of
    one."""
    told: list[CampaignProgress] = []
    lab.open(TINY, machine=make.CPU, launches=2, on_progress=told.append).evidence(parse_key(TINY))
    assert [(str(line.pass_), line.launch, line.of) for line in told] == [
        ("diagnostic", 1, 1), ("timed", 1, 2), ("timed", 2, 2),
    ]  # fmt: skip
    assert (told[0].scenario_key, told[0].phase, told[0].tokens_per_s) == (TINY, "window", 500.0)


def test_progress_counts_on_in_the_confirmation(lab, make):
    """Launch 2 of 3, not 2 of 2 and then 3 of 2."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    told: list[CampaignProgress] = []
    lab.open(A, on_progress=told.append).judge(parse_key(A))
    assert [(line.launch, line.of) for line in told] == [(1, 1), (2, 3), (3, 3)]
