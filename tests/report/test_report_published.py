"""Published figures beside ours: which rows are near, and that those which ship can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.records import Measurement, Stack, Value
from pytest_charllm.records.published import PublishedRow
from pytest_charllm.report.case import Case
from pytest_charllm.report.published import beside, near_to
from pytest_charllm.scenario import Scenario, Training
from pytest_charllm.scenario.flops import FORMULAS, flops_per_token
from pytest_charllm.scenario.models import models
from pytest_charllm.store.published import published

SHIPPED = Path(__file__).parents[2] / "baselines"
ROWS = published(SHIPPED)


def case(key: str, throughput: float | None) -> Case:
    measured = Measurement(
        launch_id="x", scenario_key=key, started="2026-11-29T12:00:00Z", stack=Stack(), device_uuids=("GPU-1",),
        values={"throughput": Value(value=throughput, unit="tokens/s/GPU", reason=None if throughput else "no window")},
    )  # fmt: skip
    return Case(key=key, verdict="PASS", because="", measurements=[measured])


def test_same_work_on_the_same_hardware_is_near() -> None:
    """A number from other work beside ours reads as a regression or a triumph, and is neither."""

    def gpus(key: str, variant: str = "h100-sxm") -> set[int]:
        return {row.gpus for row in near_to(key, variant, ROWS)}

    assert gpus("llama3-8b.dp8+fsdp.mb1") == {8, 128}
    assert gpus("llama3-70b.tp8pp4dp2.mb1.gb128.recompute-full.no-overlap.dist-opt") == {64, 2048}
    assert not gpus("llama3-8b.dp8+fsdp.mb1", "h200-sxm"), "only fp8 was published there"
    assert gpus("llama3-8b.dp8+fsdp.mb1.fp8", "h200-sxm") == {32, 64}
    assert not gpus("llama3-8b.8L.mb1"), "a reduced model"
    assert not gpus("llama3-8b.mb1.seq4096")
    assert not gpus("llama3-8b.mb1.lora32")
    assert not gpus("script-train.dp2.args-1f9c02ab")


def test_line_has_both_numbers_and_whose_they_are() -> None:
    """ "Slower than published" without the published GPUs and layout cannot be looked into."""
    key = "llama3-70b.tp8pp4dp2.mb1.gb128.dist-opt"
    (line,) = beside([case(key, 1050.0), case("llama3-1b.mb1", 1.0), case(key, None)], "h100-sxm", ROWS)
    assert line.startswith(
        f"published beside {key}, 1,050 tokens/s/GPU: 1,118 by NVIDIA dgxc-benchmarking 25.04 (64 GPUs"
    )


def test_shipped_rows_say_what_they_are() -> None:
    """A row without its source, or with an MFU of an unknown formula, is a rumour."""
    assert len(ROWS) >= 20
    for row in ROWS:
        assert row.model in models(), row
        assert row.source, row
        assert row.document, row
        assert row.flop_formula in (None, *FORMULAS), row
        assert (row.mfu is None) == (row.mfu_peak_tflops is None), row
        assert row.mfu is None or row.flop_formula is not None, row
    assert {row.hardware for row in ROWS} - set(CATALOGUE) == {"h100-500w"}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.mfu or row.tflops], ids=lambda row: f"{row.source}-{row.gpus}"
)
def test_shipped_rows_agree_with_themselves(row: PublishedRow) -> None:
    """A slip of the pen: tokens per second, step time and MFU of one row follow from each other by its own formula."""
    scenario = Scenario(work=Training(model=row.model, microbatch=1, seq=row.seq))
    tflops = row.tokens_per_s_per_gpu * flops_per_token(scenario, row.flop_formula or "") / 1e12
    said = row.tflops or (row.mfu or 0.0) * (row.mfu_peak_tflops or 0.0)
    assert tflops == pytest.approx(said, rel=0.02)
    if row.step_s and row.global_batch:
        tokens = row.global_batch * row.seq / row.step_s / row.gpus
        assert tokens == pytest.approx(row.tokens_per_s_per_gpu, rel=0.01)
