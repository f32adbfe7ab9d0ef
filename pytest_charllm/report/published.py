"""Our numbers beside published ones: a sanity band to read, never a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.errors import BadInput
from pytest_charllm.records.published import PublishedRow
from pytest_charllm.report.case import Case
from pytest_charllm.report.numbers import value
from pytest_charllm.scenario import Scenario, Training
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import sequence


def beside(cases: Sequence[Case], variant: str, rows: Sequence[PublishedRow]) -> list[str]:
    """A line for each case with a throughput that somebody published too: of the whole model, in the same precision, at
    the same sequence length, on the same hardware variant. GPUs, layout and batch are named, since they differ.
    """
    lines = []
    for case in cases:
        throughput, near = case.value("throughput"), near_to(case.key, variant, rows)
        if throughput is None or not near:
            continue
        told = "; ".join(
            f"{value('throughput', row.tokens_per_s_per_gpu)} by {row.source} ({row.gpus} GPUs, {row.configuration})"
            for row in near
        )
        lines.append(f"published beside {case.key}, {value('throughput', throughput)} tokens/s/GPU: {told}")
    return lines


def near_to(key: str, variant: str, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Published rows of the same work on the same hardware variant."""
    try:
        scenario = parse_key(key)
    except BadInput:  # a script's
        return []
    if not isinstance(scenario.work, Training) or scenario.work.layers is not None or scenario.options.lora:
        return []
    return [row for row in rows if _same_work(row, scenario) and row.hardware == variant]


def _same_work(row: PublishedRow, scenario: Scenario) -> bool:
    wanted = (scenario.training.model, scenario.options.precision, sequence(scenario))
    return (row.model, row.precision, row.seq) == wanted
