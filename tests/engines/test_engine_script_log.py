"""A script's own output in the place of marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_charllm.engines.errors import NonFinite
from pytest_charllm.engines.script.log import reader_of, told_by_log
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Pass, Phases, RankDevice, RankReport, Stack, Unmeasured, tier
from pytest_charllm.scenario import Script

WINDOW = replace(tier("nightly", False).window, min_steps=5, min_seconds=0.1, warmup_seconds=0.1)
MEGATRON = Script("train.py", log="megatron-lm")
RECORDED = Path(__file__).parent / "logs" / "data" / "megatron.log"


def report(script: Script = MEGATRON) -> RankReport:
    return RankReport(
        nonce="n", rank=0, world_size=1, host="h", pid=1, pass_=Pass.TIMED, device=RankDevice(kind="cpu", name="c"),
        tokens_per_step=script.tokens_per_step, software=Stack(), phases=Phases(),
    )  # fmt: skip


def test_steps_and_their_source_come_from_the_log() -> None:
    """What the reader found is what is judged: times, tokens, warm-up, and where they are from."""
    told = told_by_log(report(), MEGATRON, RECORDED, WINDOW)
    assert told.unmeasured is None
    assert told.steps is not None
    assert len(told.steps.wall_s) >= 5
    assert told.warmup is not None
    assert told.step_source.startswith("megatron-lm log, ")


def test_declared_tokens_go_before_those_of_the_log() -> None:
    """The declaration is the user's own word, for logs that count something else."""
    declared = Script("train.py", log="auto", tokens_per_step=123)
    assert told_by_log(report(declared), declared, RECORDED, WINDOW).tokens_per_step == 123


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", "no-log"),
        ("hello\n" * 50, "no-steps"),
        (" iteration  1/ 30 | consumed samples: 1 | elapsed time per iteration (ms): 5.0 |\n", "incomplete"),
    ],
)
def test_log_without_steps_is_a_status_and_a_line(tmp_path: Path, text: str, status: str) -> None:
    """Garbage in a log is neither a number nor a traceback."""
    (tmp_path / "out.log").write_text(text)
    told = told_by_log(report(), MEGATRON, tmp_path / "out.log", WINDOW)
    assert told.steps is None
    assert isinstance(told.unmeasured, Unmeasured)
    assert told.unmeasured.status == status
    assert str(tmp_path / "out.log") in told.unmeasured.message
    assert "\n" not in told.unmeasured.message


def test_loss_that_is_no_number_fails_the_launch(tmp_path: Path) -> None:
    """Speed of a training that has diverged is of no interest, and our own engines fail the same way."""
    (tmp_path / "out.log").write_text(RECORDED.read_text().replace("lm loss: 1.065000E+01", "lm loss: NAN"))
    with pytest.raises(NonFinite, match="a training loss is NaN or infinite"):
        told_by_log(report(), MEGATRON, tmp_path / "out.log", WINDOW)


def test_unknown_reader_is_told_before_the_training() -> None:
    """An hour of training for a typing error."""
    with pytest.raises(BadInput, match="log reader 'megatron' is not known; did you mean megatron-lm"):
        reader_of(Script("train.py", log="megatron"))
