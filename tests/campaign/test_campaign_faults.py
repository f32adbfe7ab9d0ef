"""Faults that a run has to notice before or between its launches. Numbered as they are listed."""

from __future__ import annotations

import json

import pytest

from pytest_charllm.devices.probe import ComputeProcess
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Verdict
from pytest_charllm.scenario.key import parse_key

A, B = "llama3-1b.mb1", "llama3-1b.mb2"


@pytest.mark.parametrize(
    ("on_record", "here", "named"),
    [
        ({"power_limit_w": 700.0}, {"power_limit_w": 600.0}, "power_limit_w: 700.0 on record, 600.0 here"),
        ({}, {"semantics": {"energy_j": "counter, module scope"}}, "semantics of energy_j: counter on record"),
    ],
)
def test_fault_25_other_limits_and_sensors_are_incomparable(lab, make, on_record, here, named):
    """The difference is named, nothing is judged, and the record stays as it is until somebody accepts another."""
    lab.put_on_record(A, machine=make.h200(**on_record))
    if "semantics" in here:
        lab.launcher.endings["*"] = make.Ending(semantics=here.pop("semantics"))
    judgement = lab.open(A, machine=make.h200(**here)).judge(parse_key(A))
    assert judgement.verdict is Verdict.NO_BASELINE
    assert named in judgement.because


def test_fault_25_another_driver_is_compared(lab, make):
    """Finding the driver that made things slower is the job."""
    lab.put_on_record(A)
    lab.launcher.endings["*"] = make.Ending(slowdown=0.10, driver="590.1")
    judgement = lab.open(A).judge(parse_key(A))
    assert judgement.verdict is Verdict.REGRESSION
    assert ("driver", None, "590.1") in judgement.stack_diff


def test_fault_26_a_foreign_process_is_named_and_nothing_started(lab):
    """Its pid where the driver tells it."""
    lab.foreign = [ComputeProcess(uuid="GPU-0", pid=4711)]
    evidence = lab.open(A, launches=1).evidence(parse_key(A))
    assert evidence.invalid == "another process is using the device: pid 4711 on GPU-0; end it and run again"
    assert lab.launcher.ids == []


def test_fault_26_a_hot_predecessor_is_waited_for(lab):
    """A board that somebody else left 5 degrees below slowdown: cooled to 15 below, for as long as is allowed."""
    lab.sensors = {"core_temp_c": 84.0, "margin_c": 5.0}
    lab.still_warm = "GPU-0 still at 80 degC"
    campaign = lab.open(A, B, launches=1)
    assert campaign.evidence(parse_key(A)).invalid is None
    assert lab.cooled == [({"GPU-0": 71.0}, "nvml")]
    assert "preflight: started hot: GPU-0 still at 80 degC" in campaign.run.info.notes
    assert any("5 degC below slowdown, 15 are needed (see nvidia-smi" in note for note in campaign.run.info.notes)


def test_fault_30_a_second_run_on_the_same_gpu_is_refused(lab, make):
    """Two runs would measure each other; on other GPUs of the node they may run side by side."""
    lab.open(A)
    with pytest.raises(BadInput, match=r"GPU-0 is in use by another pytest-charllm run"):
        lab.open(A)


def test_a_refused_device_is_not_measured(lab):
    """One look at the devices a campaign, before anything is started; the command that shows it is in the line."""
    lab.health = {"remap_failed": 1.0}
    campaign = lab.open(A, B, launches=1)
    assert campaign.evidence(parse_key(A)).invalid == (
        "preflight: GPU-0: refused: a memory row could not be remapped: have the board replaced "
        "(see nvidia-smi -q -d ECC,ROW_REMAPPER -i GPU-0)"
    )
    assert lab.launcher.ids == []


def test_a_fit_device_is_looked_at_once(lab):
    """A look costs the start of a process and of the driver's library: not for each of hundreds of launches."""
    lab.health = {"persistence": 0.0}
    campaign = lab.open(A, B, launches=2)
    campaign.evidence(parse_key(A))
    assert lab.inspected == [("GPU-0",)]
    assert any("persistence mode is off" in note for note in campaign.run.info.notes)


def test_two_gpus_are_another_set_of_devices(lab, make):
    """Links matter between two, and not for one."""
    lab.health = {"link_count": 18.0, "links_active": 17.0}
    two = "llama3-1b.dp2.mb1"
    campaign = lab.open(A, two, machine=make.h200(gpus=2), launches=1)
    assert campaign.evidence(parse_key(A)).invalid is None
    assert "17 of 18 links are up" in campaign.evidence(parse_key(two)).invalid


def holes(lines: list[dict]) -> list[dict]:
    """Two of five samples lost, all over the trace."""
    kept, count = [], 0
    for line in lines:
        count += line["line"] == "sample"
        if line["line"] != "sample" or count % 5 < 3:
            kept.append(line)
    return kept


def stuck(lines: list[dict]) -> list[dict]:
    """The power sensor of a board whose other sensors go on."""
    for line in lines:
        if line["line"] == "sample":
            line["values"]["power_instant_w"] = 612.5
            line["values"]["power_average_w"] += line["mono_ns"] % 7
    return lines


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (holes, "core temp end: core_temp_c seen in 62 % of the window, 95 % needed; hbm temp end: hbm_temp_c seen in"),
        (stuck, "energy per token: power_instant_w stale: unchanged for 6.2 s while power_average_w moved"),
    ],
)
def test_a_replay_of_damaged_telemetry_is_inconclusive(lab, damage, named):
    """Launches as fast as those on record, whose sensors prove nothing: never a PASS, and the reason by name."""
    lab.put_on_record(A)
    recorded = lab.open(A)
    assert recorded.judge(parse_key(A)).verdict is Verdict.PASS
    for path in (recorded.run.path / "launches").rglob("telemetry.jsonl"):
        lines = damage([json.loads(line) for line in path.read_text().splitlines()])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lab.launcher = None
    judgement = lab.open(A, replay=recorded.run.path / "launches").judge(parse_key(A))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert named in judgement.because, judgement.because
