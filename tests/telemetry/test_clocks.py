from __future__ import annotations

import pytest

from pytest_charllm.telemetry.clocks import Instant, discontinuities

S = 1_000_000_000
BEFORE = Instant(mono_ns=100 * S, wall_ns=2_000_000_000 * S, boot_ns=150 * S)


def after(elapsed_s: float, *, stepped_s: float = 0.0, asleep_s: float = 0.0) -> list[tuple[str, str]]:
    now = Instant(
        mono_ns=BEFORE.mono_ns + round(elapsed_s * S),
        wall_ns=BEFORE.wall_ns + round((elapsed_s + stepped_s + asleep_s) * S),
        boot_ns=BEFORE.boot_ns + round((elapsed_s + asleep_s) * S),
    )
    return [(event.kind, event.text) for event in discontinuities(BEFORE, now)]


@pytest.mark.parametrize("stepped_s", [5.0, -5.0])
def test_fault_23_a_step_of_the_wall_clock_is_on_record_and_changes_no_duration(stepped_s):
    """NTP steps by seconds: samples carry CLOCK_MONOTONIC only, so the step is told and nothing else comes of it."""
    assert after(0.25, stepped_s=stepped_s) == [("clock-stepped", f"the wall clock was set by {stepped_s:+.1f} s")]


def test_fault_23_a_suspended_machine_is_on_record():
    """CLOCK_MONOTONIC stands still meanwhile: the window looks whole, and half of it was not there."""
    assert after(0.25, asleep_s=30.0) == [("suspended", "the machine was suspended for 30.0 s")]


def test_an_ordinary_quarter_of_a_second_is_nothing():
    """Slewing and a busy scheduler must not look like a step."""
    assert after(0.25, stepped_s=0.001) == after(3.0) == []


def test_now_has_all_clocks():
    """Where BOOTTIME exists it runs ahead of MONOTONIC by what the machine slept."""
    now = Instant.now()
    assert now.boot_ns == 0 or now.boot_ns > now.mono_ns - S
    assert now.anchor().wall_s == pytest.approx(now.wall_ns / 1e9)
