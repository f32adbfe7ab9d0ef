"""Across a measuring version: an accepted run's launches, reduced again."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.commands.bridge import bridge
from pytest_charllm.errors import BadInput
from pytest_charllm.records import MEASURING, Verdict
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"


def test_bridged_baseline_is_judged_by_again(lab: Any) -> None:
    """A raised version would otherwise cost every GPU a new first night, in which nothing is judged."""
    lab.put_on_record(KEY)
    run = RunDirectory.open(lab.root / ".charllm", "latest")
    machine, store = run.info.machine, lab.store
    with pytest.raises(BadInput, match="already; there is nothing to bridge"):
        bridge(run, store, KEY, "")
    found = store.find(machine, KEY)
    older = replace(found.comparable, measuring=MEASURING - 1)
    sample = found.reference.samples[0]
    raised = replace(sample, values=sample.values | {"throughput": 1.01 * sample.values["throughput"]})
    reference = replace(found.reference, samples=(raised, *found.reference.samples[1:]))
    store.write(replace(found, comparable=older, stacks=(reference,)), machine)
    assert lab.open(KEY).judge(parse_key(KEY)).verdict is Verdict.NO_BASELINE
    lab.opened[-1].close()

    done = bridge(run, store, KEY, "edges of the window")
    assert done.old.samples[0].values["throughput"] == raised.values["throughput"]
    assert [each.values for each in done.new.samples] == [each.values for each in found.reference.samples]
    assert done.new.because.endswith(
        f"bridged from measuring version {MEASURING - 1} to {MEASURING}: edges of the window"
    )
    assert lab.open(KEY).judge(parse_key(KEY)).verdict is Verdict.PASS


def test_no_bridge_without_its_launches(lab: Any) -> None:
    """Half a run would change the reference, and nobody would know why."""
    lab.put_on_record(KEY)
    run = RunDirectory.open(lab.root / ".charllm", "latest")
    found = lab.store.find(run.info.machine, KEY)
    older = replace(found.comparable, measuring=MEASURING - 1)
    other = replace(older, power_limit_w=600.0)
    for comparable, says in (
        (other, "more than the measuring version differs: power_limit_w"),
        (older, "launches on record"),
    ):
        lab.store.write(replace(found, comparable=comparable), run.info.machine)
        if comparable is older:
            shutil.rmtree(run.path / "launches" / KEY / "timed-2")
        with pytest.raises(BadInput, match=says):
            bridge(run, lab.store, KEY, "")
    with pytest.raises(BadInput, match="is not on record"):
        bridge(run, lab.store, "llama3-1b.mb2", "")
