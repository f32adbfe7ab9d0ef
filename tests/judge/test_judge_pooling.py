"""Many scenarios at once: what moved together is one alarm with one name."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pytest_charllm.judge.pooling import pooled
from pytest_charllm.records import Baseline, Judgement, Verdict

LEVEL = 64000.0


def judgements(
    make: SimpleNamespace, changes: list[float], record: Baseline | None = None, model: str = "llama3-1b", **fields: str
) -> list[Judgement]:
    """One a change of throughput, each with its own key, judged whole against the same record."""
    record = record or make.record([[LEVEL] * 3])
    found = []
    for number, change in enumerate(changes):
        launch = make.gpu({"throughput": LEVEL * (1 + change), "energy_per_token": 0.0109 / (1 + change)}, **fields)
        outcome = make.decide([[launch] * 3] * 2, record)
        found.append(replace(outcome, scenario_key=f"{model}.mb{number + 1}"))
    return found


def test_thirty_small_losses_are_one_alarm_with_one_name(make: SimpleNamespace) -> None:
    """Each of them passes alone. Together they are a driver that costs 1.5 %."""
    night = judgements(make, [-0.015] * 30)
    assert {each.verdict for each in night} == {Verdict.PASS}
    (throughput,) = pooled(night)
    assert (throughput.metric, throughput.who, throughput.red) == ("throughput", "all 30 scenarios", 0)
    assert throughput.text == (
        "throughput -1.5 % over all 30 scenarios (pooled tolerance 1.4 %, noise provisional), "
        "with it energy per token +1.5 %, each within its own tolerance; all changed driver 575 -> 580"
    )
    assert len(throughput.keys) == 30


def test_thirty_regressions_of_one_cause_are_one_alarm_too(make: SimpleNamespace) -> None:
    """Thirty red stories hide that it is one."""
    (throughput,) = pooled(judgements(make, [-0.06] * 30))
    assert (throughput.red, throughput.who) == (30, "all 30 scenarios")
    assert "30 of them red by themselves" in throughput.text


def test_one_scenarios_own_loss_is_not_everybodys(make: SimpleNamespace) -> None:
    """A mean would hang one kernel's 40 % around the necks of 29 others."""
    assert pooled(judgements(make, [0.0] * 29 + [-0.4])) == ()


def test_gains_are_no_alarm(make: SimpleNamespace) -> None:
    """Direction counts here as well."""
    assert pooled(judgements(make, [0.03] * 30)) == ()


def test_a_model_that_moved_is_named(make: SimpleNamespace) -> None:
    """Six of one model lost 2 %, two dozen others nothing: it is that model's kernel, not the night."""
    night = judgements(make, [0.0] * 24) + judgements(make, [-0.02] * 6, model="gpt3-175b")
    (throughput,) = pooled(night)
    assert throughput.who == "gpt3-175b: 6 of 30 scenarios"
    assert throughput.with_it == ("energy per token +2.0 %",)
    assert all(key.startswith("gpt3-175b.") for key in throughput.keys)


def test_what_moved_elsewhere_is_an_alarm_of_its_own(make: SimpleNamespace) -> None:
    """One model lost tokens, another draws more for each of them: two causes, two names."""
    record = make.record([[LEVEL] * 3])
    watts = [make.decide([[make.gpu({"energy_per_token": 0.0109 * 1.025})] * 3], record)] * 6
    thirsty = [replace(each, scenario_key=f"llama3-8b.mb{number}") for number, each in enumerate(watts, 1)]
    night = judgements(make, [0.0] * 18) + judgements(make, [-0.02] * 6, model="gpt3-175b") + thirsty
    assert [(alarm.metric, alarm.who.partition(":")[0], alarm.with_it) for alarm in pooled(night)] == [
        ("throughput", "gpt3-175b", ("energy per token +2.0 %",)),
        ("energy_per_token", "llama3-8b", ()),
    ]


def test_few_are_judged_one_by_one(make: SimpleNamespace) -> None:
    """Three siblings are no crowd; without a baseline there is nothing to pool."""
    assert pooled(judgements(make, [-0.02] * 3)) == ()
    assert pooled([make.decide([[make.gpu()] * 3], None)] * 10) == ()
    assert pooled([]) == ()


def test_another_card_is_shared_by_all(make: SimpleNamespace) -> None:
    """A card that is 1.5 % slower than the recorded one slows thirty scenarios, and no software is to blame."""
    assert pooled(judgements(make, [-0.015] * 30, uuid="GPU-7")) == ()
    assert pooled(judgements(make, [-0.03] * 30, uuid="GPU-7"))


def test_common_nights_on_record_are_the_noise(make: SimpleNamespace) -> None:
    """Thirty siblings that had bad nights together before do not become thirty witnesses of a fault."""
    calm = make.record([[LEVEL * (1 + 0.0005 * (i % 3 - 1))] * 3 for i in range(9)])
    wild = make.record([[LEVEL * (1 + 0.012 * (i % 3 - 1))] * 3 for i in range(9)])
    for record, alarms in ((calm, 1), (wild, 0)):
        night = judgements(make, [-0.0145] * 10, record)
        found = pooled(night, {each.scenario_key: record for each in night})
        assert [alarm.metric for alarm in found].count("throughput") == alarms
        assert not any(alarm.provisional for alarm in found)


@pytest.mark.parametrize(("loss", "low", "high"), [(0.0, 0.0, 0.07), (0.015, 0.6, 1.0)])
def test_pooled_error_rates(make: SimpleNamespace, loss: float, low: float, high: float) -> None:
    """Nights of 0.3 % that all siblings share, launches of 0.3 %: rarely wrong, and 1.5 % on four siblings is seen."""
    chance, alarms = random.Random(3), []
    for _ in range(30):
        nights = [chance.gauss(0, 0.003) for _ in range(9)]
        records = {
            f"llama3-1b.mb{n + 1}": make.record(
                [[LEVEL * (1 + night + chance.gauss(0, 0.003)) for _ in range(3)] for night in nights]
            )
            for n in range(4)
        }
        night = chance.gauss(0, 0.003) - loss
        found = []
        for key, record in records.items():
            launches = [make.gpu({"throughput": LEVEL * (1 + night + chance.gauss(0, 0.003))}) for _ in range(3)]
            found.append(replace(make.decide([launches] * 2, record), scenario_key=key))
        alarms.append(any(alarm.metric == "throughput" for alarm in pooled(found, records)))
    assert low <= statistics.fmean(alarms) <= high
