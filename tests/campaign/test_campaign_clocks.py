"""What a scenario asks of the cards and of its window: launches at locked clocks, and long ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from pytest_charllm.campaign import runner
from pytest_charllm.errors import DeviceError
from pytest_charllm.records import Launch
from pytest_charllm.scenario.key import parse_key

FREE, LOCKED, SOAKED = "llama3-1b.mb1", "llama3-1b.mb1.sm1200", "llama3-1b.mb1.soak15"


@pytest.fixture
def events(lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Locks and launches, in order; no process is started."""
    seen: list[str] = []

    @contextmanager
    def locked(uuids: Sequence[str], mhz: int) -> Iterator[None]:
        seen.append(f"lock {','.join(uuids)} {mhz}")
        yield
        seen.append("give back")

    run = lab.launcher.run

    def launch(request, on_progress=None) -> Launch:
        seen.append(request.id)
        return run(request, on_progress)

    monkeypatch.setattr(runner, "locked_clocks", locked)
    monkeypatch.setattr(lab.launcher, "run", launch, raising=False)
    return seen


def test_clocks_are_locked_for_the_launches_that_ask_for_it(lab, events: list[str]) -> None:
    """A neighbour that takes its turn between them would be measured at a clock that is not in its name."""
    campaign = lab.open(FREE, LOCKED, launches=2)
    campaign.evidence(parse_key(FREE))
    locked = ["lock GPU-0 1200", f"{LOCKED}.timed-1", "give back", "lock GPU-0 1200", f"{LOCKED}.timed-2", "give back"]
    assert events == [f"{FREE}.timed-1", *locked[:3], f"{FREE}.timed-2", *locked[3:]]


def test_each_clock_has_a_baseline_of_its_own(lab, events: list[str]) -> None:
    """Half the clock is half the speed, and no regression."""
    lab.put_on_record(LOCKED)
    campaign = lab.open(FREE, LOCKED)
    assert campaign.baseline(LOCKED) is not None
    assert campaign.baseline(FREE) is None


def test_without_the_right_to_lock_nothing_is_launched(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch would run at the driver's own clock, and go on record as one at 1200 MHz."""

    @contextmanager
    def refused(uuids: Sequence[str], mhz: int) -> Iterator[None]:
        raise DeviceError("SM clocks cannot be locked to 1200 MHz: NoPermission (4)")
        yield

    monkeypatch.setattr(runner, "locked_clocks", refused)
    evidence = lab.open(LOCKED).evidence(parse_key(LOCKED))
    assert lab.launcher.requests == []
    assert evidence.harness
    assert "NoPermission" in (evidence.invalid or "")


def test_a_soak_has_its_own_window_and_deadline(lab) -> None:
    """Its deadline of an hour would end a soak of an hour; and minutes are not compared with seconds."""
    campaign = lab.open(FREE, SOAKED, launches=1)
    for key in (FREE, SOAKED):
        campaign.judge(parse_key(key))
    free, soaked = lab.launcher.requests
    assert free.window.min_seconds == 5.0
    assert soaked.window.min_seconds == 900.0
    assert soaked.limits.total_s == free.limits.total_s + 900.0
    assert campaign.run.comparable(SOAKED).window == "smoke 10 steps 900 s"
