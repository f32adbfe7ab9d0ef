"""Recorded launches through ``--charllm-replay``, with the real campaign, store, measure and judge behind it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_charllm.records import Verdict
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"
HOTTER_C = 8.0
SUITE = f"""
from pytest_charllm import scenarios

@scenarios("{KEY}")
def test_it(measured):
    measured.check()
"""
CONFTEST = """
from pytest_charllm.hardware import Device, Machine

def pytest_charllm_machine(config):
    return Machine(variant="h200-sxm", gpus_per_node=1, driver="580.159.04",
                   devices=(Device(uuid="{uuid}", name="NVIDIA H200", power_limit_w=700.0),))
"""


def as_if_hotter(telemetry: Path, degrees_c: float, from_s: float) -> None:
    """From that moment of the sampler's file on. Its first second is before any load, and says how the card started."""
    lines = [json.loads(line) for line in telemetry.read_text().splitlines()]
    from_ns = min(line["mono_ns"] for line in lines if line["line"] == "sample") + round(from_s * 1e9)
    for line in lines:
        for quantity in ("core_temp_c", "hbm_temp_c"):
            if line["line"] == "sample" and line["mono_ns"] >= from_ns and quantity in line["values"]:
                line["values"][quantity] += degrees_c
    telemetry.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("hotter_c", "from_s", "uuid", "verdict"),
    [
        (0.0, 0.0, "GPU-0", Verdict.PASS),
        (HOTTER_C, 1.5, "GPU-0", Verdict.REGRESSION),
        (HOTTER_C, 0.0, "GPU-9", Verdict.PASS),
    ],
    ids=["as recorded", "hotter under load", "another card, in a hotter place"],
)
def test_eight_degrees_more_on_the_same_card(
    lab: Any,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    hotter_c: float,
    from_s: float,
    uuid: str,
    verdict: Verdict,
) -> None:
    """What a clogged filter does, from the option to the verdict; another card's degrees say nothing about this one."""
    lab.put_on_record(KEY)
    night = lab.open(KEY, launches=3)
    night.judge(parse_key(KEY))
    night.close()
    launches = night.run.path / "launches"
    for folder in (launches / KEY).iterdir():
        as_if_hotter(folder / "telemetry.jsonl", hotter_c, from_s)
        for name in ("telemetry.jsonl", "launch.json"):
            (folder / name).write_text((folder / name).read_text().replace("GPU-0", uuid))
    shutil.copytree(lab.root / "baselines", pytester.path / "baselines")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(SUITE)
    pytester.makeconftest(CONFTEST.format(uuid=uuid))
    pytester.chdir()
    result = pytester.runpytest_inprocess("-p", "charllm", "--charllm-tier=smoke", f"--charllm-replay={launches}")
    judgement = RunDirectory.open(pytester.path / ".charllm", "latest").judgement(KEY)
    assert judgement is not None
    assert judgement.verdict is verdict, result.stdout.str()
    result.assert_outcomes(**{"failed" if verdict is Verdict.REGRESSION else "passed": 1})
    regressed = {row.metric for row in judgement.metrics if row.verdict is Verdict.REGRESSION}
    assert regressed == ({"core_temp_end", "hbm_temp_end"} if verdict is Verdict.REGRESSION else set())
    if verdict is Verdict.REGRESSION:
        result.stdout.fnmatch_lines(["*core temp end +8.0 degC*"])
        assert "cooling" in {said.rule for said in judgement.diagnosis}
