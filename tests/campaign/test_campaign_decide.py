"""From the first round to the verdict: confirmation, cooling, what is kept in the run directory, baselines."""

from __future__ import annotations

import pytest

from pytest_charllm.campaign import campaign as campaign_module
from pytest_charllm.campaign import cooling
from pytest_charllm.campaign.settings import Planned
from pytest_charllm.errors import BadRecord
from pytest_charllm.launch.names import LAUNCH, REQUEST
from pytest_charllm.records import Fault, Pass, RankRequest, Verdict, from_json
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

A, B, C = (f"llama3-1b.mb{n}" for n in (1, 2, 4))
TINY = "tiny-llama.dp2.mb2.fp32.eager"


def row(judgement, metric):
    return next(row for row in judgement.metrics if row.metric == metric)


def test_as_fast_as_on_record(lab):
    """One launch is enough where nothing moved, by every metric that the tier requires."""
    lab.put_on_record(A)
    campaign = lab.open(A)
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.PASS
    assert (judgement.launches, judgement.confirmed, len(lab.launcher.ids)) == (1, False, 1)
    for metric in campaign.settings.tier.required:
        assert row(judgement, metric).verdict is Verdict.PASS, metric
    assert campaign.evidence(parse_key(A)).repro is None


def test_a_breach_that_is_confirmed(lab, make):
    """Slow in the first round and in exactly one more of fresh launches: red, and asking again launches nothing."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A)
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.REGRESSION
    assert (judgement.launches, judgement.confirmed) == (3, True)
    assert row(judgement, "throughput").change == pytest.approx(1 / 1.1 - 1)
    assert [len(group) for group in campaign.evidence(parse_key(A)).rounds] == [1, 2]
    assert campaign.judge(parse_key(A)) is judgement
    assert lab.launcher.ids == [f"{A}.timed-{n}" for n in (1, 2, 3)]


def test_a_breach_that_is_not_confirmed(lab, make):
    """One slow launch says nothing yet: as fast as ever in the confirmation is a pass that tells of the first round."""
    lab.put_on_record(A)
    lab.launcher.endings["*.timed-1"] = make.Ending(slowdown=0.10)
    judgement = lab.open(A).judge(parse_key(A))
    assert judgement.verdict is Verdict.PASS
    assert len(lab.launcher.ids) == 3
    assert "not-confirmed" in {finding.kind for finding in judgement.findings}


def test_no_launch_until_green(lab, make):
    """The confirmation is one round. A third that passes would be retrying until green."""
    lab.put_on_record(A)
    lab.launcher.endings |= {f"*.timed-{n}": make.Ending(slowdown=0.10) for n in (1, 2, 3)}
    campaign = lab.open(A)
    assert campaign.judge(parse_key(A)).verdict is Verdict.REGRESSION
    assert campaign.judge(parse_key(A)).verdict is Verdict.REGRESSION
    assert len(lab.launcher.ids) == 3


def test_a_confirmation_compiles_from_cold(lab, make):
    """With the first round's compiler cache a compiler that got slow could never be confirmed."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A, launches=2)
    campaign.judge(parse_key(A))
    caches = [request.cache_dir for request in lab.launcher.requests]
    assert caches[0] == caches[1] != caches[2] == caches[3]
    assert all(cache.is_relative_to(campaign.run.cache) for cache in caches)


def test_a_confirmation_starts_as_cool_as_the_record(lab, make):
    """A card still hot from the first round would confirm its own heat. The wait is for our devices by UUID."""
    lab.put_on_record(A)
    recorded_c = [sample.start_temp_c["GPU-0"] for sample in lab.store.find(make.h200(), A).reference.samples]
    assert not lab.cooled
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A)
    campaign.judge(parse_key(A))
    ((target_c, source),) = lab.cooled
    assert target_c == {"GPU-0": pytest.approx(recorded_c[0])}
    assert source == "nvml"
    assert not campaign.run.info.notes


def test_cooling_in_vain_is_on_record(lab, make):
    """Launched all the same, with a note beside the results: heat is then a possible cause of what they say."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    lab.still_warm = "GPU-0 still at 60 degC"
    campaign = lab.open(A)
    assert campaign.judge(parse_key(A)).verdict is Verdict.REGRESSION
    run = RunDirectory.open(campaign.settings.root, "latest")
    assert run.info.notes == (f"{A}: confirmation without full cooling: GPU-0 still at 60 degC",)


def test_cooling_by_the_real_sampler(lab, make, monkeypatch):
    """Targets, source and devices fit together: the simulated board is at its recorded start temperature at once."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    monkeypatch.setattr(campaign_module, "cool_down", cooling.cool_down)
    campaign = lab.open(A, source="simulated:h200")
    assert campaign.judge(parse_key(A)).verdict is Verdict.REGRESSION
    assert not campaign.run.info.notes


def test_gate_a_on_a_cpu(lab, make):
    """CPU time against the calibration beside it is what is judged there; there is nothing to cool."""
    lab.put_on_record(TINY, machine=make.CPU)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(TINY, machine=make.CPU)
    judgement = campaign.judge(parse_key(TINY))
    assert judgement.verdict is Verdict.REGRESSION
    assert (row(judgement, "cost_cpu").gate, row(judgement, "cost_cpu").verdict) == ("Gate A", Verdict.REGRESSION)
    assert all(check.ok for check in judgement.checks)
    assert [len(group) for group in campaign.evidence(parse_key(TINY)).rounds] == [1, 2]
    assert all(not target_c for target_c, _ in lab.cooled)


def test_the_run_directory_has_it_all(lab, make):
    """`baseline accept` and a later look at the run know only what was written."""
    campaign = lab.open(TINY, machine=make.CPU)
    evidence, judgement = campaign.evidence(parse_key(TINY)), campaign.judge(parse_key(TINY))
    campaign.close()
    run = RunDirectory.open(campaign.settings.root, "latest")
    assert run.measurements(TINY) == evidence.measurements
    assert run.measurements(TINY, Pass.DIAGNOSTIC) == [evidence.aside]
    assert run.launches(TINY) == evidence.launches
    assert run.judgement(TINY) == judgement
    assert run.comparable(TINY).cpu_model == "some CPU"
    assert {launch.id: evidence.directories[launch.id] / LAUNCH for launch in evidence.launches} == {
        f"{TINY}.{pass_}-{n}": run.path / "launches" / TINY / f"{pass_}-{n}" / LAUNCH
        for pass_, n in [("diagnostic", 1), *(("timed", n) for n in range(1, 6))]
    }


def test_what_was_asked_for_is_in_the_run(lab, make):
    """An injected run must be known as one from its own record, for ever."""
    fault = Fault(name="slowdown", value=0.1)
    info = lab.open(A, faults=(fault,), seed=7, arguments="pytest suites/").run.info
    assert (info.faults, info.seed, info.arguments, info.tier) == ((fault,), 7, "pytest suites/", "smoke")
    assert not info.replayed


def test_a_regression_leaves_one_bundle(lab, make):
    """What one attaches to the vendor's ticket: the last, confirming launch, as it was asked for."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A)
    campaign.judge(parse_key(A))
    evidence = campaign.evidence(parse_key(A))
    assert [*campaign.run.path.rglob("repro.sh")] == [evidence.repro / "repro.sh"]
    assert evidence.repro.parent == evidence.directories[f"{A}.timed-3"]


def test_a_broken_check_is_repeated_by_its_own_pass(lab, make):
    """A timed launch checks nothing: a bundle made of one could never show what is wrong."""
    lab.launcher.endings["*.diagnostic-1"] = make.Ending(flops=False)
    campaign = lab.open(TINY, machine=make.CPU)
    judgement = campaign.judge(parse_key(TINY))
    assert (judgement.verdict, [check.name for check in judgement.checks if not check.ok]) == ("REGRESSION", ["FLOPs"])
    request = campaign.evidence(parse_key(TINY)).repro / REQUEST
    assert from_json(request.read_bytes(), RankRequest, request).pass_ is Pass.DIAGNOSTIC


def test_other_sensors_are_noticed_once_they_were_read(lab, make):
    """One launch was thought enough. As what is on record means something else, the first round is filled up, so that
    this run can be accepted in its place."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(semantics={"power_instant_w": "instant, module scope"})
    campaign = lab.open(A)
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.NO_BASELINE
    assert "instant, GPU scope on record, instant, module scope here" in judgement.because
    assert judgement.launches == 3
    assert campaign.run.comparable(A).semantics["power_instant_w"] == "instant, module scope"


def test_a_site_may_keep_baselines_elsewhere(lab, make):
    """Its own look-up is asked first, with the machine and the key; where it has none, the store decides."""
    lab.put_on_record(A)
    lab.put_on_record(B)
    elsewhere, asked = {A: lab.store.find(make.h200(), A)}, []
    lab.store.path(make.h200(), A).unlink()

    def find_baseline(machine, key):
        asked.append((machine, key))
        return elsewhere.get(key)

    campaign = lab.open(A, B, find_baseline=find_baseline)
    assert campaign.judge(parse_key(A)).verdict is Verdict.PASS
    assert campaign.judge(parse_key(B)).verdict is Verdict.PASS
    assert asked[0] == (make.h200(), A)


def test_a_corrupt_baseline_is_its_own_tests_trouble(lab, make):
    """Neighbours are measured without it, and it fails, unlaunched, when its turn comes, every time it is asked."""
    lab.put_on_record(B)
    lab.store.path(make.h200(), B).write_text('{"schema": 9}')
    campaign = lab.open(A, B, C)
    assert campaign.judge(parse_key(A)).verdict is Verdict.NO_BASELINE
    assert not any(launch.startswith(f"{B}.") for launch in lab.launcher.ids)
    for _ in range(2):
        with pytest.raises(BadRecord, match=r"llama3-1b.mb2.json: field schema is 9"):
            campaign.evidence(parse_key(B))
    assert campaign.judge(parse_key(C)).verdict is Verdict.NO_BASELINE
    assert sorted(lab.launcher.ids) == [f"{key}.timed-{n}" for key in (A, C) for n in (1, 2, 3)]


def test_strict_only_passes_by_its_checks(lab, make):
    """Its verdict rests on the checks alone and is kept; a comparable is too, or `accept` would call it unjudged."""
    campaign = lab.open(Planned(parse_key(TINY), speed=False), machine=make.CPU)
    judgement = campaign.judge(parse_key(TINY))
    assert (judgement.verdict, judgement.launches, len(judgement.checks)) == (Verdict.PASS, 0, 6)
    assert campaign.run.judgement(TINY) == judgement
    assert campaign.run.comparable(TINY) is not None


def test_medians_are_of_the_first_round(lab, make):
    """A trend compares like with like: the confirmation started from another temperature and another cache."""
    lab.put_on_record(A)
    lab.launcher.endings["*.timed-1"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A)
    campaign.judge(parse_key(A))
    evidence = campaign.evidence(parse_key(A))
    assert len(evidence.measurements) == 3
    assert evidence.median("step_time") == pytest.approx(0.125 * 1.10)
    assert evidence.median("cost_cpu") is None
