"""What does not end well, and that it stays with the scenario it belongs to."""

from __future__ import annotations

import pytest

from pytest_charllm.devices import find
from pytest_charllm.devices.probe import ComputeProcess
from pytest_charllm.errors import DeviceError
from pytest_charllm.launch.names import REQUEST
from pytest_charllm.records import RankRequest, Status, Verdict, from_json
from pytest_charllm.scenario.key import parse_key

A, B = "llama3-1b.mb1", "llama3-1b.mb2"
TWO = "llama3-1b.dp2.mb1"
TINY, TINY_2 = "tiny-llama.dp2.mb2.fp32.eager", "tiny-gpt.dp2.mb2.fp32.eager"


@pytest.mark.parametrize("status", [Status.CRASHED, Status.HUNG, Status.OUT_OF_MEMORY])
def test_a_failed_launch_ends_its_scenario(lab, make, status):
    """Two more crashes would tell nothing new and cost a night; the neighbours are measured as planned."""
    lab.launcher.endings[f"{A}.timed-2"] = make.Ending(status)
    campaign = lab.open(A, B)
    evidence = campaign.evidence(parse_key(A))
    assert (evidence.failed.id, evidence.failed.status, evidence.invalid) == (f"{A}.timed-2", status, None)
    assert lab.launcher.ids == [f"{A}.timed-1", f"{B}.timed-1", f"{A}.timed-2", f"{B}.timed-2", f"{B}.timed-3"]
    assert len(evidence.measurements) == 1
    assert campaign.evidence(parse_key(B)).failed is None
    assert len(campaign.evidence(parse_key(B)).measurements) == 3


def test_a_failed_launch_leaves_one_bundle(lab, make):
    """The request in it is the one that failed, so that it fails the same way elsewhere."""
    lab.launcher.endings[f"{A}.timed-1"] = make.Ending(Status.CRASHED)
    campaign = lab.open(A, seed=7)
    evidence = campaign.evidence(parse_key(A))
    assert evidence.repro == evidence.directories[f"{A}.timed-1"] / "repro"
    assert [*campaign.run.path.rglob("repro.sh")] == [evidence.repro / "repro.sh"]
    request = from_json((evidence.repro / REQUEST).read_bytes(), RankRequest, REQUEST)
    assert (request.scenario.key, request.seed) == (A, 7)


def test_the_first_failure_keeps_its_bundle(lab, make):
    """Judged all the same, a check is broken as well: the ticket is about what ended the scenario."""
    lab.launcher.endings |= {"*.diagnostic-1": make.Ending(flops=False), "*.timed-1": make.Ending(Status.CRASHED)}
    campaign = lab.open(TINY, machine=make.CPU)
    evidence = campaign.evidence(parse_key(TINY))
    assert campaign.judge(parse_key(TINY)).verdict is Verdict.REGRESSION
    assert [*campaign.run.path.rglob("repro.sh")] == [evidence.directories[f"{TINY}.timed-1"] / "repro" / "repro.sh"]


def test_a_failed_diagnostic_pass_ends_its_scenario(lab, make):
    """What does not even run to be checked is not timed."""
    lab.launcher.endings[f"{TINY}.diagnostic-1"] = make.Ending(Status.CRASHED)
    campaign = lab.open(TINY, TINY_2, machine=make.CPU, launches=1)
    evidence = campaign.evidence(parse_key(TINY))
    assert evidence.failed.id == f"{TINY}.diagnostic-1"
    assert lab.launcher.ids == [f"{TINY}.diagnostic-1", f"{TINY_2}.diagnostic-1", f"{TINY_2}.timed-1"]


def test_a_crash_in_the_confirmation(lab, make):
    """Neither confirmed nor refuted: the caller sees the crash, the judgement says what was to be confirmed."""
    lab.put_on_record(A)
    lab.launcher.endings |= {"*.timed-1": make.Ending(slowdown=0.10), "*.timed-2": make.Ending(Status.CRASHED)}
    campaign = lab.open(A)
    judgement = campaign.judge(parse_key(A))
    evidence = campaign.evidence(parse_key(A))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "throughput -9.1 %" in judgement.because
    assert judgement.because.endswith(f"a confirming launch failed: {A}.timed-2 ended crashed")
    assert judgement.launches == 1
    assert campaign.run.judgement(A) == judgement
    assert evidence.failed.id == f"{A}.timed-2"
    assert evidence.repro.parent == evidence.directories[f"{A}.timed-2"]
    assert lab.launcher.ids == [f"{A}.timed-1", f"{A}.timed-2"]


def test_our_own_side_fails(lab, make):
    """A sampler that cannot start says nothing about the stack under test: invalid, never failed, and no bundle."""
    lab.launcher.endings[f"{A}.timed-1"] = make.Ending(Status.HARNESS)
    campaign = lab.open(A, B, launches=2)
    evidence = campaign.evidence(parse_key(A))
    assert (evidence.invalid, evidence.harness, evidence.failed) == (f"{A}.timed-1 ended harness", True, None)
    assert evidence.repro is None
    assert lab.launcher.ids == [f"{A}.timed-1", f"{B}.timed-1", f"{B}.timed-2"]


def test_our_own_side_fails_in_the_confirmation(lab, make):
    """A breach that could not be confirmed is not red."""
    lab.put_on_record(A)
    lab.launcher.endings |= {"*.timed-1": make.Ending(slowdown=0.10), "*.timed-2": make.Ending(Status.HARNESS)}
    campaign = lab.open(A)
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.because.endswith(f"a confirming launch is not valid: {A}.timed-2 ended harness")
    assert campaign.evidence(parse_key(A)).failed is None


def test_a_spoiled_measurement(lab, make):
    """Kept, so that it can be looked at, and the scenario ends there: its numbers must never be judged."""
    lab.launcher.endings[f"{A}.timed-1"] = make.Ending(event=("processes", "pid 7 came"))
    campaign = lab.open(A, launches=2)
    evidence = campaign.evidence(parse_key(A))
    assert evidence.invalid == "another process on the device: GPU-0: pid 7 came"
    assert not evidence.harness
    assert lab.launcher.ids == [f"{A}.timed-1"]
    assert [measurement.validity for measurement in campaign.run.measurements(A)] == ["invalid"]


def test_a_telemetry_file_that_cannot_be_read(lab, make):
    """Named by file and line; without this its test would end in a traceback, and its neighbours' with it."""
    lab.launcher.endings[f"{A}.timed-1"] = make.Ending(telemetry=b'{"line":"meta","schema":9}\n')
    campaign = lab.open(A, B, launches=1)
    assert "telemetry.jsonl: line 1: field schema is 9" in campaign.evidence(parse_key(A)).invalid
    assert campaign.evidence(parse_key(B)).invalid is None


def test_a_foreign_process_is_seen_before_anything_is_launched(lab, make):
    """A notebook left open on the GPU: say who, and start nothing on that device. The other one is free."""
    lab.foreign = [ComputeProcess(uuid="GPU-1", pid=4711)]
    campaign = lab.open(TWO, A, machine=make.h200(gpus=2), launches=1)
    evidence = campaign.evidence(parse_key(TWO))
    assert evidence.invalid == "another process is using the device: pid 4711 on GPU-1; end it and run again"
    assert not evidence.launches
    assert campaign.evidence(parse_key(A)).invalid is None
    assert lab.launcher.ids == [f"{A}.timed-1"]


def test_a_foreign_process_comes_before_the_confirmation(lab, make):
    """Its load would confirm anything."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    campaign = lab.open(A)
    campaign.evidence(parse_key(A))
    lab.foreign = [ComputeProcess(uuid="GPU-0", pid=4711)]
    judgement = campaign.judge(parse_key(A))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "a confirming launch is not valid: another process is using the device: pid 4711" in judgement.because
    assert lab.launcher.ids == [f"{A}.timed-1"]


def test_a_driver_that_does_not_answer(lab, make, monkeypatch):
    """Raised through the group it would fail the one test that waits, and leave its neighbours with evidence that
    looks whole and holds nothing."""

    def hung(uuids):
        if "GPU-1" in uuids:
            raise DeviceError("the driver does not answer")
        return []

    monkeypatch.setattr(find, "foreign_processes", hung)
    campaign = lab.open(A, TWO, machine=make.h200(gpus=2), launches=1)
    assert campaign.evidence(parse_key(A)).invalid is None
    assert campaign.evidence(parse_key(TWO)).invalid == "the driver does not answer"
    assert lab.launcher.ids == [f"{A}.timed-1"]


def test_a_run_directory_that_fails_in_mid_run(lab):
    """A full disk: the scenario whose folder cannot be made says so, the others go on as far as they get."""
    campaign = lab.open(A, B, launches=1)
    (campaign.run.path / "launches").mkdir()
    (campaign.run.path / "launches" / B).touch()
    assert campaign.evidence(parse_key(A)).invalid is None
    assert "cannot be made" in campaign.evidence(parse_key(B)).invalid
    assert campaign.evidence(parse_key(B)).harness, "a disk that refuses is our side's trouble, no disturbance"
    assert lab.launcher.ids == [f"{A}.timed-1"]


def test_a_replay_needs_no_quiet_device(lab, make):
    """Recorded launches are judged again on a laptop: no preflight, no cooling, no lock, no bundle of what did not
    run here."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10)
    recorded = lab.open(A)
    recorded.judge(parse_key(A))
    lab.cooled.clear()
    lab.foreign = [ComputeProcess(uuid="GPU-0", pid=4711)]
    lab.launcher = None
    replayed = lab.open(A, replay=recorded.run.path / "launches")  # while the other one still holds the device
    judgement = replayed.judge(parse_key(A))
    assert judgement == recorded.run.judgement(A)
    evidence = replayed.evidence(parse_key(A))
    assert all(measurement.replayed for measurement in evidence.measurements)
    assert (evidence.repro, lab.cooled, replayed.run.info.replayed) == (None, [], True)
