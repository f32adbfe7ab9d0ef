# ruff: noqa: E501
"""The table at the end of a run, compared as whole texts: it is what people look at every morning."""

from __future__ import annotations

import dataclasses

import msgspec

from pytest_charllm.records import Fault, Finding, MetricVerdict, Verdict
from pytest_charllm.report import line
from pytest_charllm.report.case import Case
from pytest_charllm.report.line import against_baseline, progress, verdict
from pytest_charllm.report.table import summary

GPU_TABLE = """\
scenario          verdict     tokens/s/GPU    W  J/token  core/HBM degC  why
----------------  ----------  ------------  ---  -------  -------------  ------------------------------------------------------------
gpt3-175b.2L.mb1  PASS              40,772  588  14.4 mJ           61/-  throughput +0.4 % (tolerance 1.5 %, would have seen 1.9 %)
llama3-1b.mb2     REGRESSION        60,710  691  11.4 mJ          63/45  throughput -5.2 % (tolerance 1.5 %); energy per token +5.7 %

2 scenarios: 1 PASS, 1 REGRESSION
"""

CPU_TABLE = """\
scenario                    verdict  checks  Gate A      Gate B  tokens/s/GPU  why
--------------------------  -------  ------  ------  ----------  ------------  ---------------------------------------------------------------------------
llama-5m.dp2.mb2.fp32       PASS     3 of 3    7.65  not judged         1,376  Gate A +0.3 % (tolerance 5.0 %, would have seen 7.4 %)
llama-5m.dp2+fsdp.mb2.fp32  PASS     2 of 2    11.3        3.31           840  2 strict checks hold; speed not judged: no baseline for this CPU, recorded
llama-5m.dp2.mb2            CRASHED                                            rank 1: RuntimeError: shape '[2, 128]' is invalid for input of size 255, in
                                                                               tokens (data.py:41)

3 scenarios: 2 PASS, 1 CRASHED
1 without a baseline; put these launches on record: pytest-charllm baseline accept latest
"""


def test_gpu_table(gpu_pass: Case, regression: Case) -> None:
    """A pass states its power, a regression what moved; the columns of a CPU are gone."""
    assert summary([gpu_pass, regression]) == GPU_TABLE.rstrip("\n")


def test_cpu_table(cpu_pass: Case, unrecorded: Case, crash: Case) -> None:
    """The columns adapt: which gate spoke, the strict checks, no watts; what has no baseline is told how to get one."""
    assert summary([cpu_pass, unrecorded, crash]) == CPU_TABLE.rstrip("\n")


def test_what_accept_refuses_is_not_advised(unrecorded: Case) -> None:
    """Whoever followed the advice after one launch was refused: "1 of 5 valid launches"."""
    few = "1 of 3 valid launches; run it with --charllm-launches 3"
    alone = dataclasses.replace(unrecorded, verdict="NO_BASELINE", not_recordable=few)
    assert summary([alone]).splitlines()[-1] == f"1 without a baseline, not to be put on record: {few}"
    assert summary([alone, unrecorded, alone]).splitlines()[-2:] == [
        "1 without a baseline; put these launches on record: pytest-charllm baseline accept latest",
        f"2 without a baseline, not to be put on record: {few}",
    ]


def test_empty_run() -> None:
    """No header over nothing."""
    assert summary([]) == ""


def test_improved_asks_for_a_refresh(gpu_pass: Case) -> None:
    """An improvement nobody puts on record hides the next regression back to the old level."""
    assert gpu_pass.judgement is not None
    better = MetricVerdict(
        metric="throughput", verdict=Verdict.IMPROVED, value=42_000.0, reference=40_610.0, change=0.034, tolerance=0.015
    )
    judgement = msgspec.structs.replace(gpu_pass.judgement, verdict=Verdict.IMPROVED, metrics=(better,))
    improved = Case(key=gpu_pass.key, verdict="IMPROVED", because="throughput +3.4 %", judgement=judgement)
    assert summary([improved]).splitlines()[-1] == (
        "IMPROVED gpt3-175b.2L.mb1: throughput +3.4 % (tolerance 1.5 %); "
        "put it on record: pytest-charllm baseline accept latest --only gpt3-175b.2L.mb1"
    )


def test_a_slow_rank_is_named_though_nothing_is_red(gpu_pass: Case, regression: Case) -> None:
    """A first night on two cards of which one was 5 % slow ended as NO_BASELINE, and named it only in its records; so did a
    leak of 5,000 objects a step."""
    slow = Finding(kind="slow-rank", text="rank 1 on GPU-1: the others wait for it")
    grows = Finding(kind="growing", text="rank 0 keeps 5,000 Python objects a step")
    other = Finding(kind="provisional", text="noise provisional")

    def with_findings(case: Case) -> Case:
        assert case.judgement is not None
        return dataclasses.replace(
            case, judgement=msgspec.structs.replace(case.judgement, findings=(slow, grows, other))
        )

    text = summary([with_findings(gpu_pass)])
    assert f"noticed {gpu_pass.key}: rank 1 on GPU-1: the others wait for it" in text.splitlines()
    assert f"noticed {gpu_pass.key}: rank 0 keeps 5,000 Python objects a step" in text.splitlines()
    assert "noise provisional" not in text.partition("noticed")[2]
    assert "noticed" not in summary([with_findings(regression)])


def test_injected_runs_never_ask_to_be_accepted(injected: Case, unrecorded: Case) -> None:
    """Hinting at `accept` beside an injected slowdown would be an invitation to a poisoned baseline."""
    notes = summary([injected, unrecorded]).split("\n\n")[-1].splitlines()
    assert notes == [
        "2 scenarios: 1 REGRESSION, 1 PASS",
        "injected slowdown: 10.0 % requested, 10.2 % achieved: these launches can never become a baseline",
    ]


def test_lines(gpu_pass: Case, regression: Case, injected: Case, crash: Case) -> None:
    """One line each, the phrase of the power in a pass, the gate in a CPU's regression."""
    assert verdict(gpu_pass) == "PASS gpt3-175b.2L.mb1: throughput +0.4 % (tolerance 1.5 %, would have seen 1.9 %)"
    assert verdict(regression) == (
        "REGRESSION llama3-1b.mb2: throughput -5.2 % (tolerance 1.5 %); energy per token +5.7 %"
    )
    assert verdict(injected) == (
        "REGRESSION llama-5m.dp2.mb2: Gate A +10.2 % (tolerance 5.0 %); loss parity, collective count failed"
    )
    assert verdict(crash) == f"CRASHED llama-5m.dp2.mb2: {crash.because}"
    assert progress("llama3-1b.mb1", "timed", 2, 3, "window", 40_772.3) == (
        "llama3-1b.mb1  timed launch 2 of 3  window, 40,772 tokens/s/GPU in warm-up"
    )
    assert progress("llama3-1b.mb1", "timed", 1, 3, "compile") == "llama3-1b.mb1  timed launch 1 of 3  compile"


def test_an_absolute_limit_has_no_change() -> None:
    """A metric that passed its limit has no change to print, but its value and the reason."""
    throttled = MetricVerdict(
        metric="throttle_hw", verdict=Verdict.REGRESSION, value=0.12, reason="limit 0.1 %, whatever is on record"
    )
    assert against_baseline(throttled) == "throttle hw 12.0 % (limit 0.1 %, whatever is on record)"


def test_a_step_is_no_share(injected: Case) -> None:
    """``hang=3`` once read "300.0 % requested, achieved not known"."""
    hang = Fault(name="hang", value=3.0)
    launches = [msgspec.structs.replace(launch, faults=(hang,)) for launch in injected.launches]
    assert line.injected(dataclasses.replace(injected, launches=launches)) == "hang at step 3"
