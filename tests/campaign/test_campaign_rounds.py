"""Launch until decided: what sequential stopping and pooling make of a run, with the real judge."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_charllm.campaign import campaign as campaign_module
from pytest_charllm.judge.diagnosis.node import Suspect
from pytest_charllm.records import Verdict, tier
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

A = "llama3-1b.mb2"
SIBLINGS = [f"llama3-1b.mb{n}" for n in (1, 2, 4, 8)]
NIGHTLY = tier("nightly", False)


@pytest.fixture
def long_record(lab, make):
    """One accepted run nine times over, with launches 0.2 % apart: the noise is this scenario's own."""
    lab.put_on_record(A, tier=NIGHTLY)
    once = lab.store.find(make.h200(), A)

    def scattered(sample, launch):
        throughput = sample.values["throughput"] * (1 + 0.002 * (launch - 1))
        return replace(sample, values=sample.values | {"throughput": throughput})

    samples = tuple(scattered(sample, launch) for launch, sample in enumerate(once.reference.samples))
    runs = tuple(replace(once.reference, run_id=f"run-{n}", samples=samples) for n in range(9))
    return lambda machine, key: replace(once, stacks=runs)


def test_a_calm_night_takes_one_launch(lab, long_record):
    """The tier's other two would say the same."""
    judgement = lab.open(A, tier=NIGHTLY, find_baseline=long_record).judge(parse_key(A))
    assert (judgement.verdict, judgement.launches) == (Verdict.PASS, 1)
    assert len(lab.launcher.ids) == 1


def test_what_fills_up_the_first_round_belongs_to_it(lab, make, long_record):
    """Neither cooled before nor compiled anew: it is held against launches that followed each other."""
    lab.launcher.endings["*.timed-1"] = make.Ending(slowdown=0.0149)
    campaign = lab.open(A, tier=NIGHTLY, find_baseline=long_record)
    judgement = campaign.judge(parse_key(A))
    assert (judgement.verdict, judgement.launches) == (Verdict.PASS, 2)
    assert [len(group) for group in campaign.evidence(parse_key(A)).rounds] == [2]
    assert len({request.cache_dir for request in lab.launcher.requests}) == 1
    assert not any(target_c for target_c, _ in lab.cooled)


def test_a_crass_breach_takes_two_launches(lab, make, long_record):
    """One that breaches and one, cooled and cold, that confirms."""
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A, tier=NIGHTLY, find_baseline=long_record)
    judgement = campaign.judge(parse_key(A))
    assert (judgement.verdict, judgement.launches) == (Verdict.REGRESSION, 2)
    assert [len(group) for group in campaign.evidence(parse_key(A)).rounds] == [1, 1]
    assert len({request.cache_dir for request in lab.launcher.requests}) == 2
    assert len(lab.cooled) == 1


def test_small_losses_everywhere_are_one_alarm(lab, make):
    """Four scenarios lost 2 % each and pass, since little is known of their noise. Together they do not, and the run
    keeps it: what only scrolls by in a terminal is gone by the morning."""
    lab.put_on_record(*SIBLINGS)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.02)
    campaign = lab.open(*SIBLINGS)
    assert {campaign.judge(parse_key(key)).verdict for key in SIBLINGS} == {Verdict.PASS}
    (alarm,) = [alarm for alarm in campaign.alarms() if alarm.metric == "throughput"]
    assert (alarm.who, alarm.red, alarm.provisional) == ("all 4 scenarios", 0, True)
    assert alarm.change == pytest.approx(1 / 1.02 - 1)
    for _ in range(2):
        campaign.close()
    notes = RunDirectory.open(lab.root / ".charllm", "latest").info.notes
    assert [note for note in notes if note.startswith("moved together: ")] == campaign.together()
    assert f"moved together: {alarm.text}" in notes


def test_a_suspect_node_is_kept_with_the_run(lab, monkeypatch):
    """Two red scenarios of one bad card are one ticket, for those who run the node."""
    suspect = Suspect(uuid="GPU-1", keys=(A, "b"), causes=("slow card",))
    monkeypatch.setattr(campaign_module, "suspects", lambda judgements: (suspect,))
    campaign = lab.open(A)
    campaign.close()
    assert campaign.run.info.notes == (f"node suspect: {suspect.text}",)


def test_a_calm_run_has_no_alarm(lab):
    """Nor has one in which nothing was judged yet."""
    lab.put_on_record(*SIBLINGS)
    campaign = lab.open(*SIBLINGS)
    assert campaign.alarms() == ()
    for key in SIBLINGS:
        campaign.judge(parse_key(key))
    assert campaign.alarms() == ()
