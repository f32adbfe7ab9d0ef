"""A recorded run judged again by other rules: where they would have fired, and what was said then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.campaign.backtest import backtest
from pytest_charllm.errors import BadInput
from pytest_charllm.judge.rules import Rules, rules_of
from pytest_charllm.launch.replay import ReplayLauncher
from pytest_charllm.records import Verdict
from pytest_charllm.scenario.key import parse_key

KEY = "llama3-1b.mb1"
SHARP = rules_of({"factor": 0.5, "tolerances": {"throughput": {"floor": 0.005, "prior_sigma": 0.001}}}, "rules.toml")


def test_sharper_rules_on_a_run_that_passed(lab: Any, make: SimpleNamespace) -> None:
    """A tolerance is chosen by what it would have done to the nights one has, not by a feeling."""
    lab.put_on_record(KEY, launches=3)
    lab.launcher.endings[f"{KEY}.timed-*"] = make.Ending(slowdown=0.01)
    night = lab.open(KEY, launches=5)
    assert night.judge(parse_key(KEY)).verdict is Verdict.PASS
    night.close()
    launches = night.run.path / "launches"
    lab.launcher = ReplayLauncher(launches)
    again = lab.open(KEY, replay=launches, rules=SHARP, launches=3)
    assert again.judge(parse_key(KEY)).verdict is Verdict.REGRESSION
    fired, what = again.backtest()
    assert fired == "these rules would have fired on 1 of 1 recorded scenarios"
    assert what.startswith(f"  {KEY}: throughput -1.0 %")
    assert what.endswith("; recorded as PASS")
    again.close()
    lab.launcher = ReplayLauncher(launches)
    short = lab.open(KEY, replay=launches, rules=SHARP, launches=5)
    short.judge(parse_key(KEY))
    none, unconfirmed = short.backtest()
    assert none.startswith("these rules would have fired on 0 of 1")
    assert unconfirmed.startswith(f"  {KEY}: to be confirmed: throughput -1.0 %, but no more launches are on record")
    short.close()
    judged = again.judgements[0]
    blunt = backtest([replace(judged, verdict=Verdict.PASS)], again.run.path / "launches")
    assert blunt[1] == f"  {KEY}: would not have fired; recorded as REGRESSION"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"tolerance": {}}, "unknown field `tolerance`"),
        ({"factor": 0}, "factor 0 must be above 0"),
        ({"tolerances": {"speed": {"floor": 0.01}}}, "metric 'speed' is not known; "),
        ({"tolerances": {"Gate A": {"floor": 0.01}, "cost_cpu": {"floor": 0.02}}}, "a metric has two tables"),
        ({"tolerances": {"busyness": {"floor": 0.01}}}, "metric 'busyness' has no tolerance"),
        ({"tolerances": {"throughput": {"flor": 0.01}}}, "throughput: flor cannot be changed"),
        ({"tolerances": {"throughput": {"floor": -0.01}}}, "floor = -0.01 must be 0 or more"),
        ({"tolerances": {"throughput": {"floor": float("nan")}}}, "floor = nan must be 0 or more"),
    ],
)
def test_a_file_that_says_nothing_clear(document: dict[str, Any], says: str) -> None:
    """A typo would be judged by the shipped rule, and read as a proof that the new one is harmless."""
    with pytest.raises(BadInput, match=r"^rules\.toml: ") as error:
        rules_of(document, "rules.toml")
    assert says in str(error.value)


def test_no_change_is_the_shipped_table(make: SimpleNamespace) -> None:
    """The default must not touch a number."""
    from pytest_charllm.judge.tolerances import GPU

    assert Rules().applied(GPU) == GPU
