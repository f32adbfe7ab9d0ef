"""All names of the package, which `pytest_charllm.records` gives out on first use."""

from pytest_charllm.records.base import MEASURING, SCHEMA, Record, from_json, timestamp, to_json, to_pretty_json
from pytest_charllm.records.baseline import Baseline, BaselineSample, BaselineStack, Comparable
from pytest_charllm.records.judgement import Diagnosis, Judgement, MetricVerdict, NeedMore, Noise, Verdict
from pytest_charllm.records.launch import (
    Calibration,
    Collective,
    Elapsed,
    Failure,
    Fault,
    FaultApplied,
    Launch,
    MessageTimes,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    RankRequest,
    Reference,
    Status,
    StepMarks,
    StepSeries,
    Unmeasured,
    Warmup,
    WindowEdges,
    WindowRule,
)  # fmt: skip
from pytest_charllm.records.logs import LogProblem, LogStatus, LogSteps
from pytest_charllm.records.measurement import Check, Finding, Measurement, Validity, Value, numbers_of, why_missing
from pytest_charllm.records.metrics import METRICS, Better, Metric, metric_named
from pytest_charllm.records.stack import Stack
from pytest_charllm.records.telemetry import DeviceLine, EndLine, EventLine, Line, Meta, SampleLine, Trace
from pytest_charllm.records.tiers import TIERS, Tier, tier

__all__ = [
    "MEASURING", "METRICS", "SCHEMA", "TIERS", "Baseline", "BaselineSample", "BaselineStack", "Better", "Calibration",
    "Check", "Collective", "Comparable", "DeviceLine", "Diagnosis", "Elapsed", "EndLine", "EventLine", "Failure",
    "Fault", "FaultApplied", "Finding", "Judgement", "Launch", "Line", "LogProblem", "LogStatus", "LogSteps",
    "Measurement", "MessageTimes", "Meta", "Metric", "MetricVerdict", "NeedMore", "Noise", "Pass", "Phases",
    "RankDevice", "RankReport", "RankRequest", "Record", "Reference", "SampleLine", "Stack", "Status", "StepMarks",
    "StepSeries", "Tier", "Trace", "Unmeasured", "Validity", "Value", "Verdict", "Warmup", "WindowEdges", "WindowRule",
    "from_json", "metric_named", "numbers_of", "tier", "timestamp", "to_json", "to_pretty_json", "why_missing",
]  # fmt: skip
