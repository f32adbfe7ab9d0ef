"""Soaks: the degrees of a board that has settled are judged, and asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_charllm.judge.policy import Policy
from pytest_charllm.records import Judgement, NeedMore, Verdict, tier
from pytest_charllm.scenario.key import parse_key

SETTLED = {"core_temp_steady": 60.0, "thermal_resistance": 0.05, "core_temp_spread": 4.0}


def decide(make: SimpleNamespace, key: str, *rounds: dict[str, float | None]) -> Judgement | NeedMore:
    record = make.baseline([make.gpu(SETTLED)] * 3)
    launches = [[make.gpu({**SETTLED, **changes})] * 3 for changes in rounds]
    policy = Policy(tier("nightly", False), is_cpu=False)
    return policy.decide(parse_key(key), record, make.comparable(), launches, None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"core_temp_steady": 66.0}, "core temp steady +6.0 degC"),
        ({"thermal_resistance": 0.06}, "thermal resistance +20.0 %"),
        ({"core_temp_spread": 10.0}, "core temp spread +6.0 degC"),
    ],
)
def test_a_board_that_settles_hotter_is_a_regression(
    make: SimpleNamespace, changes: dict[str, float | None], told: str
) -> None:
    """A fan or a cold plate on its way out shows in nothing else before the clocks fall."""
    judgement = decide(make, "llama3-1b.mb2.soak15", changes, changes)
    assert isinstance(judgement, Judgement)
    assert judgement.verdict is Verdict.REGRESSION
    assert told in judgement.because


def test_a_board_that_never_settles_decides_nothing(make: SimpleNamespace) -> None:
    """The mean of a temperature that still rises is below where it ends."""
    judgement = decide(make, "llama3-1b.mb2.soak15", {"core_temp_steady": None, "thermal_resistance": None})
    assert isinstance(judgement, Judgement)
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_short_windows_are_not_asked_to_settle(make: SimpleNamespace) -> None:
    """Every nightly row would be INCONCLUSIVE."""
    judgement = decide(make, "llama3-1b.mb2", {"core_temp_steady": None, "thermal_resistance": None})
    assert isinstance(judgement, Judgement)
    assert judgement.verdict is Verdict.PASS
