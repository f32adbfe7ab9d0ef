"""The story of a failure, compared as whole texts: it has to read like a good bug report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec

from pytest_charllm.hardware import Machine
from pytest_charllm.records import (
    METRICS,
    Diagnosis,
    Failure,
    Measurement,
    MetricVerdict,
    Stack,
    Validity,
    Value,
    Verdict,
)
from pytest_charllm.report.case import Case
from pytest_charllm.report.line import why
from pytest_charllm.report.properties import properties
from pytest_charllm.report.story import story
from pytest_charllm.report.text import WIDTH

RERUN = "pytest 'suites/test_llama.py::test_llama[x]'"

REGRESSION = """\
REGRESSION llama3-1b.mb2 on h200-sxm 1x1
throughput -5.2 % (tolerance 1.5 %), energy per token +5.7 % (tolerance 3.0 %); confirmed

metrics
  metric           here  on record     change  tolerance  would have seen  verdict
  ------------  -------  ---------  ---------  ---------  ---------------  -----------------------------------------
  tokens/s/GPU   60,710     64,051     -5.2 %      1.5 %            1.9 %  REGRESSION: confirmed -5.1 % (tolerance
                                                                           1.5 %)
  J/token       11.4 mJ    10.8 mJ     +5.7 %      3.0 %            3.4 %  REGRESSION: confirmed +5.5 % (tolerance
                                                                           3.0 %)
  W                 691        690     +0.1 %      3.0 %            3.4 %  PASS: noise assumed: 3 launches on record
  core degC        63.0       62.2  +0.8 degC   5.0 degC                   PASS

not judged
  HBM degC 45.0: not comparable: started at 41 degC, on record 33 degC (band 3 degC)

stack
  part    on record   here
  ------  ----------  ------
  driver  580.159.04  590.12
  nccl    none        2.28.9

findings
  power-capped  software power cap in 97 % of the window, on record 96 %

launches
  launch   started               tokens/s/GPU  J/token  devices
  -------  --------------------  ------------  -------  --------
  timed-1  2026-11-29T12:45:01Z        60,711  11.4 mJ  GPU-9f2c
  timed-2  2026-11-29T12:45:02Z        60,712  11.4 mJ  GPU-9f2c

where
  launch  runs/1/launches/llama3-1b.mb2/timed-2
  repro   runs/1/launches/llama3-1b.mb2/timed-2/repro

run just this
  pytest 'suites/test_llama.py::test_llama[x]'
"""

INJECTED = """\
REGRESSION llama-5m.dp2.mb2 on cpu 1x2 (AMD EPYC 7B13)
Gate A +10.2 % (tolerance 5.0 %)
injected slowdown: 10.0 % requested, 10.2 % achieved

metrics
  metric  here  on record   change  tolerance  would have seen  verdict
  ------  ----  ---------  -------  ---------  ---------------  ----------------------------------------
  Gate A  8.41       7.63  +10.2 %      5.0 %            7.4 %  REGRESSION: confirmed +10.0 % (tolerance
                                                                5.0 %)

checks
  loss parity FAILED       expected 4.3733, observed 4.4012 (relative limit 1e-06); at step 2 of 5
  collective count FAILED  expected 1, observed 2 (must be equal)
  passed                   parameters

stack
  the same software as on record

run just this
  pytest 'suites/test_llama.py::test_llama[x]'
"""

CRASH = """\
CRASHED llama-5m.dp2.mb2 on cpu 1x2 (AMD EPYC 7B13)
rank 1: RuntimeError: shape '[2, 128]' is invalid for input of size 255, in tokens (data.py:41)

first cause: exception on rank 1, launch llama-5m.dp2.mb2.timed-2
  Traceback (most recent call last):
    File "pytest_charllm/engines/native/data.py", line 41, in tokens
      return flat.view(2, 128)
  RuntimeError: shape '[2, 128]' is invalid for input of size 255

log of rank 1, last lines
  ... 6 lines above
  [rank1] step 6 loss 4.2
  [rank1] step 7 loss 4.2
  [rank1] step 8 loss 4.2
  [rank1] step 9 loss 4.2
  [rank1] step 10 loss 4.2
  [rank1] step 11 loss 4.2
  [rank1] step 12 loss 4.2
  [rank1] step 13 loss 4.2
  [rank1] step 14 loss 4.2
  [rank1] step 15 loss 4.2
  [rank1] step 16 loss 4.2
  [rank1] step 17 loss 4.2
  [rank1] step 18 loss 4.2
  [rank1] step 19 loss 4.2
  [rank1] step 20 loss 4.2
  [rank1] step 21 loss 4.2
  [rank1] step 22 loss 4.2
  [rank1] step 23 loss 4.2
  [rank1] step 24 loss 4.2
  [rank1] xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...

where
  log     runs/1/launches/llama-5m.dp2.mb2/timed-2/logs/1/stderr.log

run just this
  pytest 'suites/test_llama.py::test_llama[x]'
"""

UNRECORDED = """\
PASS llama-5m.dp2+fsdp.mb2.fp32 on cpu 1x2 (AMD EPYC 7B13)
2 strict checks hold; speed not judged: no baseline for this CPU, recorded

not judged
  Gate A 11.3, Gate B 3.31: no baseline for this CPU, recorded
  tokens/s/GPU 840, step 152 ms: informational

checks
  passed  loss parity, parameters

launches
  launch   started               Gate A
  -------  --------------------  ------
  timed-1  2026-11-29T12:45:01Z    11.3
  timed-2  2026-11-29T12:45:02Z    11.3
  timed-3  2026-11-29T12:45:03Z    11.3
  timed-4  2026-11-29T12:45:04Z    11.3
  timed-5  2026-11-29T12:45:05Z    11.3

run just this
  pytest 'suites/test_llama.py::test_llama[x]'
"""


def test_regression(regression: Case, h200: Machine) -> None:
    """Numbers against the record, the worst first, the stack diff, the spread over launches, where to look."""
    folder = Path("runs/1/launches/llama3-1b.mb2/timed-2")
    text = story(regression, machine=h200, rerun=RERUN, folder=folder, repro=folder / "repro")
    assert text == REGRESSION.rstrip("\n")


def test_injected(injected: Case, cpu: Machine) -> None:
    """Requested beside achieved, failed checks with both sides, and that the software is not the suspect."""
    assert story(injected, machine=cpu, rerun=RERUN) == INJECTED.rstrip("\n")


def test_crash(crash: Case, cpu: Machine) -> None:
    """The first cause with its traceback, and the tail of that rank's log, overlong lines cut."""
    assert story(crash, machine=cpu, rerun=RERUN) == CRASH.rstrip("\n")


def test_what_the_machine_lacks_is_one_line(crash: Case, cpu: Machine) -> None:
    """No compiler: forty lines of our own traceback, twice, stood around the sentence that helps."""
    (*others, launch) = crash.launches
    assert launch.failure is not None
    lacking = msgspec.structs.replace(launch.failure, kind="environment", summary="rank 1: NoCompiler: install g++")
    case = dataclasses.replace(
        crash, because=lacking.summary, launches=[*others, msgspec.structs.replace(launch, failure=lacking)]
    )
    text = story(case, machine=cpu, rerun=RERUN)
    assert text.splitlines()[1] == "rank 1: NoCompiler: install g++"
    assert "Traceback" not in text
    assert "last lines" not in text
    assert str(lacking.log_path) in text


def test_nothing_on_record(unrecorded: Case, cpu: Machine) -> None:
    """What was measured is told although nothing could be judged."""
    assert story(unrecorded, machine=cpu, rerun=RERUN) == UNRECORDED.rstrip("\n")


def test_width(crash: Case, regression: Case, h200: Machine) -> None:
    """A wide log line or a long list must not wrap around in a CI log."""
    assert regression.judgement is not None
    finding = msgspec.structs.replace(regression.judgement.findings[0], text="word " * 100)
    listed = tuple(
        MetricVerdict(metric=metric, verdict=Verdict.NOT_JUDGED, value=1.5, reason="informational")
        for metric in METRICS
    )
    wide = Case(
        key=regression.key,
        verdict="REGRESSION",
        because="because " * 40,
        judgement=msgspec.structs.replace(regression.judgement, findings=(finding,), metrics=listed),
        measurements=regression.measurements,
    )
    for case in (crash, regression, wide):
        assert max(map(len, story(case, machine=h200, rerun=RERUN).splitlines())) <= WIDTH


def test_invalid_measurement_says_why(h200: Machine) -> None:
    """Without a judgement the launches themselves have to tell what spoiled them."""
    spoiled = Measurement(
        launch_id="a.mb1.timed-1", scenario_key="a.mb1", started="2026-11-29T12:45:01Z", stack=Stack(),
        device_uuids=("GPU-1", "GPU-2", "GPU-3"), values={"throughput": Value(value=1.0, unit="tokens/s/GPU")},
        validity=Validity.INVALID, reason="counter and integral disagree by 9 %",
    )  # fmt: skip
    case = Case(key="a.mb1", verdict="INVALID", because=spoiled.reason or "", measurements=[spoiled])
    text = story(case, machine=h200, rerun=RERUN)
    assert "GPU-1 and 2 more  invalid: counter and integral disagree by 9 %" in text
    assert text.startswith("INVALID a.mb1 on h200-sxm 1x1\ncounter and integral disagree by 9 %\n")


def test_a_failure_without_rank_or_log(crash: Case, cpu: Machine) -> None:
    """A rendezvous that never came about has neither; the story must not invent a rank."""
    (_, launch) = crash.launches
    failure = Failure(kind="rendezvous", summary="no rank showed up in 180 s")
    failed = Case(
        key=crash.key, verdict="CRASHED", because=failure.summary,
        launches=[msgspec.structs.replace(launch, failure=failure)],
    )  # fmt: skip
    assert story(failed, machine=cpu, rerun=RERUN) == (
        "CRASHED llama-5m.dp2.mb2 on cpu 1x2 (AMD EPYC 7B13)\n"
        "no rank showed up in 180 s\n\n"
        "first cause: rendezvous, launch llama-5m.dp2.mb2.timed-2\n\n"
        f"run just this\n  {RERUN}"
    )


def test_properties_are_json(regression: Case, injected: Case) -> None:
    """JUnit and pytest-benchmark store what they are given; a NaN there kills the whole report."""
    nan = msgspec.structs.replace(
        regression.measurements[0], values={"throughput": Value(value=float("nan"), unit="tokens/s/GPU")}
    )
    case = Case(
        key=regression.key, verdict=regression.verdict, because=regression.because, judgement=regression.judgement,
        measurements=[nan, *regression.measurements],
    )  # fmt: skip
    facts = properties(case)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["values"]["throughput"] == [None, 60_711.0, 60_712.0]
    assert facts["metrics"]["throughput"]["change"] == -0.0522
    assert facts["stack_diff"][0] == ["driver", "580.159.04", "590.12"]
    assert facts["units"]["energy_per_token"] == "J/token"
    assert facts["stack"] == {"torch": "2.11.0", "driver": "590.12"}
    assert properties(injected)["injected"] == [{"name": "slowdown", "requested": 0.1, "achieved": 0.102}]


def test_diagnosis_stands_below_the_numbers_that_moved(h200: Machine, regression: Case) -> None:
    """The one line that people look for; in the table it is the conclusion alone."""
    assert regression.judgement is not None
    line = "-5.2 % tokens/s; SM clock -5.9 %, thermal slowdown 41 s of 60 s: cooling, GPU-7cd6... slot 3"
    said = Diagnosis(rule="thermal", cause="cooling, GPU-7cd6... slot 3", text=line)
    case = dataclasses.replace(regression, judgement=msgspec.structs.replace(regression.judgement, diagnosis=(said,)))
    assert f"\n\ndiagnosis\n  {line}\n\nmetrics\n" in story(case, machine=h200, rerun=RERUN)
    assert why(case) == "throughput -5.2 % (tolerance 1.5 %); cooling, GPU-7cd6... slot 3; energy per token +5.7 %"
    assert properties(case)["diagnosis"] == [line]
    changed = Diagnosis(rule="workload", cause="the workload changed: attention flash on record, math here", text="")
    case = dataclasses.replace(
        regression, judgement=msgspec.structs.replace(regression.judgement, diagnosis=(changed,))
    )
    assert why(case).startswith("the workload changed: attention flash on record, math here; throughput")
