"""Which devices are measured, which only judged, and which not at all; each remark with the command that shows it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.measure.admission import Level, State, remarks
from pytest_charllm.records import DeviceLine
from pytest_charllm.records.telemetry import HEALTH

FIT = {
    "ecc_uncorrected": 0.0, "remap_pending": 0.0, "remap_failed": 0.0, "link_count": 18.0, "links_active": 18.0,
    "fabric_state": "completed", "fabric_health": "", "default_power_limit_w": 700.0, "persistence": 1.0,
    "partition": "none",
}  # fmt: skip


def state(
    health: dict[str, Any] | None = None, sensors: dict[str, Any] | None = None, alone: bool = False, **line: Any
) -> State:
    plain = {"uuid": "GPU-0", "name": "NVIDIA H200", "power_limit_w": 700.0, "slowdown_temp_c": 89.0}
    return State(
        line=DeviceLine(**(plain | line)),
        health=FIT | (health or {}),
        sensors={"core_temp_c": 35.0, "margin_c": 54.0, "event_reasons": 1.0} | (sensors or {}),
        alone=alone,
    )


def test_a_fit_device_has_no_remarks() -> None:
    """A remark on every healthy card is read by nobody."""
    assert remarks(state()) == []


def test_what_is_not_told_is_no_reason_against_it() -> None:
    """A virtual machine answers few of these: it would be refused for ever."""
    assert remarks(State(DeviceLine(uuid="G", name="NVIDIA H200"), dict.fromkeys(HEALTH), {}, alone=False)) == []


@pytest.mark.parametrize(
    ("changes", "level", "text", "command"),
    [
        ({"health": {"remap_failed": 1.0}}, "refused", "could not be remapped", "ROW_REMAPPER"),
        ({"health": {"remap_pending": 1.0}}, "tainted", "reset the GPU", "ROW_REMAPPER"),
        ({"health": {"ecc_uncorrected": 3.0}}, "admitted", "3 uncorrected memory errors", "ECC"),
        ({"health": {"partition": "mig"}}, "refused", "MIG is on", "nvidia-smi -q"),
        ({"health": {"links_active": 17.0}}, "refused", "17 of 18 links are up", "nvlink --status"),
        ({"health": {"links_active": 17.0}, "alone": True}, "tainted", "17 of 18 links are up", "nvlink --status"),
        ({"health": {"links_active": 0.0}}, "admitted", "over PCIe", "nvlink --status"),
        ({"health": {"fabric_state": "in progress"}}, "refused", "fabric is in progress", "nvidia-smi -q"),
        ({"health": {"fabric_health": "route unhealthy"}}, "refused", "route unhealthy", "nvidia-smi -q"),
        ({"health": {"fabric_state": "not started"}, "alone": True}, "admitted", "not started", "nvidia-smi -q"),
        ({"power_limit_w": 500.0}, "admitted", "power limit 500 W, below its default of 700 W", "POWER"),
        ({"sensors": {"event_reasons": 2.0}}, "tainted", "application clocks", "CLOCK"),
        ({"sensors": {"margin_c": 14.0}}, "tainted", "14 degC below slowdown", "TEMPERATURE"),
        ({"sensors": {"margin_c": None, "core_temp_c": 80.0}}, "tainted", "9 degC below slowdown", "TEMPERATURE"),
        ({"health": {"persistence": 0.0}}, "admitted", "persistence mode is off", "nvidia-smi -q"),
    ],
)
def test_each_condition_has_its_level_reason_and_command(
    changes: dict[str, Any], level: str, text: str, command: str
) -> None:
    """Whoever is woken by this at night has to see on the machine what was meant."""
    (remark,) = remarks(state(**changes))
    assert (remark.level, text in remark.text, command in remark.command) == (Level(level), True, True)
    assert "GPU-0" in remark.command


def test_amd_has_commands_of_its_own() -> None:
    """nvidia-smi on an AMD node is the wrong hint."""
    (remark,) = remarks(state({"links_active": 3.0}, name="AMD Instinct MI250"))
    assert remark.command == "amd-smi xgmi --link-status"


@given(st.dictionaries(st.sampled_from(sorted(HEALTH)), st.one_of(st.none(), st.floats(), st.text(max_size=5))))
def test_no_answer_of_a_driver_is_an_error(health: dict[str, Any]) -> None:
    """NaN, text for a number, a state of tomorrow's driver: none may end the run before it begins."""
    found = remarks(state(health))
    levels = [list(Level).index(remark.level) for remark in found]
    assert levels == sorted(levels, reverse=True)
