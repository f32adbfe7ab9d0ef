"""What happens to logs on their way to the file: restarts, mixed ranks, torn ends, NaN, and files that are no logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_charllm.engines.logs import read_log, series
from pytest_charllm.records import LogProblem, LogStatus, LogSteps, tier

Read = Callable[..., LogSteps | LogProblem]

PLAIN = (
    " iteration {step:8d}/{total:8d} | consumed samples: {step:12d} | elapsed time per iteration (ms): {ms} |"
    " global batch size: {batch:5d} | lm loss: {loss} | loss scale: 1.0 | number of nan iterations: {nan:3d} |"
)


def megatron(
    *steps: int, ms: str = "1000.0", total: int = 40, batch: int = 8, loss: str = "1.0E+00", nan: int = 0
) -> str:
    fields = {"total": total, "ms": ms, "batch": batch, "loss": loss, "nan": nan}
    return "".join(f"{PLAIN.format(step=step, **fields)}\n" for step in steps)


def kinds(log: LogSteps | LogProblem) -> list[str]:
    assert isinstance(log, LogSteps)
    return [finding.kind for finding in log.findings]


def status(log: LogSteps | LogProblem, says: str) -> LogStatus:
    """That of a problem whose message is one line and says so."""
    assert isinstance(log, LogProblem)
    assert says in log.message
    assert "\n" not in log.message
    assert log.message.startswith(f"{log.path}: ")
    return log.status


# No steps, and why


def test_no_such_file(tmp_path: Path) -> None:
    assert status(read_log(tmp_path / "none.log"), "no such file") is LogStatus.NO_LOG


def test_a_directory_or_a_pipe_is_not_waited_on(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to blocks for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert status(read_log(tmp_path / "pipe"), "no such file") is LogStatus.NO_LOG
    assert status(read_log(tmp_path), "no such file") is LogStatus.NO_LOG


def test_an_empty_file(read_bytes: Read) -> None:
    assert status(read_bytes(b""), "is empty") is LogStatus.NO_LOG


def test_no_trainers_log(read_bytes: Read) -> None:
    """The line names the readers there are, and the way out."""
    log = read_bytes("epoch 1 loss 2.0\nepoch 2 loss 1.9\n")
    assert status(log, "known: megatron-lm, nemo, torchtitan, deepspeed, huggingface, lightning") is LogStatus.UNKNOWN
    assert status(log, "mark_step") is LogStatus.UNKNOWN


def test_a_trainer_that_prints_no_times(read_bytes: Read) -> None:
    """disable_tqdm=True leaves losses alone: the run's average at the end holds start-up and evaluation."""
    lines = "".join(f"{{'loss': '{9 - n}', 'learning_rate': '5e-05', 'epoch': '0.{n}'}}\n" for n in range(1, 9))
    log = read_bytes(lines + "{'train_runtime': '80', 'train_steps_per_second': '1', 'train_loss': '5'}\n")
    assert status(log, "disable_tqdm=False") is LogStatus.NO_STEPS


def test_tokens_per_second_of_unknown_steps(read_bytes: Read) -> None:
    """Where rank 0's lines are missing, torchtitan's tokens/s are no step time; the line says which lines those are."""
    log = read_bytes("".join(f"[titan] - root - INFO - step: {n}  loss: 9.1  tps: 4,096\n" for n in range(1, 31)))
    assert status(log, "'Trainer is initialized with' and 'Building device mesh'") is LogStatus.NO_STEPS


def test_too_few_steps(read_bytes: Read) -> None:
    """Steps that are all warm-up must not be judged."""
    assert status(read_bytes(megatron(*range(1, 6))), "after 5 steps in 5 lines") is LogStatus.INCOMPLETE


def test_fewer_steps_than_the_window_needs(read_bytes: Read) -> None:
    """The caller's tier rules, in steps and in seconds."""
    log = read_bytes(megatron(*range(1, 25)), window=tier("nightly", False).window)
    says = "13 steps (13 s) are left after a warm-up of 11, 30 (15 s) are needed"
    assert status(log, says) is LogStatus.INCOMPLETE


@pytest.mark.parametrize(
    "bad", [{"loss": "nan"}, {"loss": "inf"}, {"nan": 2, "loss": ""}], ids=["nan", "inf", "counted"]
)
def test_a_loss_that_is_not_finite(read_bytes: Read, bad: dict[str, str | int]) -> None:
    """Megatron leaves a NaN loss out of its line and counts it instead."""
    log = read_bytes(megatron(*range(1, 30)) + megatron(30, **bad) + megatron(31, 32))  # type: ignore[arg-type]
    assert status(log, "after step 30") is LogStatus.NOT_FINITE


def test_a_nan_that_trainer_filters_out_of_its_loss(read_bytes: Read) -> None:
    """logging_nan_inf_filter makes a NaN loss read 0.0; the gradient norm beside it gives it away."""
    log = read_bytes("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}\n")
    assert status(log, "NaN or infinite") is LogStatus.NOT_FINITE


# Restarts and ranks


def test_a_restart_in_mid_file_keeps_the_last_attempt(read_bytes: Read) -> None:
    """A job that resumed from its checkpoint has two times for the steps in between."""
    log = read_bytes(megatron(*range(1, 31), ms="2000.0") + megatron(*range(21, 41)))
    assert kinds(log) == ["restarted"]
    assert isinstance(log, LogSteps)
    assert (log.steps, set(log.step_time_s)) == (tuple(range(32, 41)), {1.0})
    assert len(log.losses) == 20


def test_a_restart_forgives_the_nan_before_it(read_bytes: Read) -> None:
    """The attempt that counts is the last."""
    assert kinds(read_bytes(megatron(*range(1, 31), loss="nan") + megatron(*range(1, 41)))) == ["restarted"]


def test_a_restart_without_overlap_is_told_by_the_trainer(read_bytes: Read) -> None:
    """The last step is a checkpoint's, so that no number falls back; the first step after it compiles again."""
    again = "[before the start of training step] datetime: 2026-03-02 10:00:00\n"
    log = read_bytes(megatron(*range(1, 21)) + again + megatron(*range(21, 41)))
    assert kinds(log) == ["restarted"]
    assert isinstance(log, LogSteps)
    assert log.steps[0] == 32


def test_one_of_several_labelled_ranks_is_read(read_bytes: Read) -> None:
    """The lowest: always the same, in whatever order they write."""
    lines = [f"[default{rank}]:{megatron(step, ms=f'{1000 + rank}.0')}" for step in range(1, 31) for rank in (3, 2, 5)]
    log = read_bytes("".join(lines))
    assert kinds(log) == ["interleaved", "ends-early"]
    assert isinstance(log, LogSteps)
    assert set(log.step_time_s) == {1.002}


@pytest.mark.parametrize("label", ["{}: ", "[1,{}]<stdout>:", "[rank{}]:", "2026-03-02T10:00:00Z stdout F [rank{}]:"])
def test_labels_of_launchers(read_bytes: Read, label: str) -> None:
    """srun, mpirun, torchrun, and torchrun in a container."""
    lines = [f"{label.format(rank)}{megatron(step, ms=f'{1000 + rank}.0')}" for step in range(1, 41) for rank in (4, 0)]
    log = read_bytes("".join(lines))
    assert kinds(log) == ["interleaved"]
    assert isinstance(log, LogSteps)
    assert set(log.step_time_s) == {1.0}


def test_ranks_without_labels_are_not_guessed_apart(read_bytes: Read) -> None:
    """Ranks that drift apart in one file look like a restart at every other line."""
    log = read_bytes("".join(megatron(step, step - 1) for step in range(2, 40)))
    assert status(log, "falls back") is LogStatus.AMBIGUOUS


def test_lines_that_all_ranks_print_alike_count_once(read_bytes: Read) -> None:
    """Unlabelled ranks in step with each other."""
    log = read_bytes("".join(megatron(step, step) for step in range(1, 41)))
    assert kinds(log) == []
    assert isinstance(log, LogSteps)
    assert set(log.spans) == {1}


# Numbers and lines


@pytest.mark.parametrize(("ms", "seconds"), [("1234,5", 1.2345), ("1.234,5", 1.2345), ("1,234.5", 1.2345)])
def test_decimal_commas(read_bytes: Read, ms: str, seconds: float) -> None:
    """A factor of a thousand, if the comma is taken for the other kind."""
    log = read_bytes(megatron(*range(1, 41), ms=ms))
    assert isinstance(log, LogSteps)
    assert log.step_time_s == pytest.approx([seconds] * len(log.steps))


@pytest.mark.parametrize("ms", ["0.0", "-5.0", "1e12", "..", "1.2.3"])
def test_times_that_cannot_be(read_bytes: Read, ms: str) -> None:
    """They are no entries; the steps beside them are."""
    log = read_bytes(megatron(1, 2, 3) + megatron(4, ms=ms) + megatron(*range(5, 41)))
    assert isinstance(log, LogSteps)
    assert set(log.step_time_s) == {1.0}


def test_a_step_past_the_end_is_rubbish(read_bytes: Read) -> None:
    """A digit too many in one line would make all that follow a restart."""
    assert kinds(read_bytes(megatron(*range(1, 20)) + megatron(200) + megatron(*range(20, 41)))) == []


def test_the_last_line_may_lack_digits(read_bytes: Read) -> None:
    """A step time of 1000.0 ms cut to 10 is a number all the same."""
    log = read_bytes(megatron(*range(1, 40)) + megatron(40)[:92])
    assert kinds(log) == ["ends-early", "truncated"]
    assert isinstance(log, LogSteps)
    assert (log.steps[-1], set(log.step_time_s)) == (39, {1.0})


def test_bytes_that_are_no_utf8(read_bytes: Read) -> None:
    """A host name or a bar in a legacy code page must not end the reading."""
    log = read_bytes(megatron(*range(1, 41)).encode().replace(b"| consumed", b"|\xdb\xff consumed"))
    assert kinds(log) == []


def test_a_batch_that_grows_has_no_tokens(read_bytes: Read) -> None:
    """Batch size ramp-up: one number of tokens for all steps would be wrong for some."""
    arguments = f"  seq_length {'.' * 38} 1024\n"
    log = read_bytes(arguments + megatron(*range(1, 21)) + megatron(*range(21, 41), batch=16))
    assert isinstance(log, LogSteps)
    assert log.tokens_per_step is None
    assert "grows from 8 to 16" in log.tokens_why


def test_a_batch_of_nothing_has_no_tokens(read_bytes: Read) -> None:
    """It was a throughput of 0, judged as such."""
    log = read_bytes(("  seq_length ...... 4096\n" + megatron(*range(1, 40), batch=0)).encode())
    assert isinstance(log, LogSteps)
    assert (log.tokens_per_step, log.tokens_why) == (
        None,
        "0 tokens a step are none (global batch size 0 x seq_length 4096)",
    )


def test_memory_is_bounded(read_bytes: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month of steps: the first ones are kept, and the log says so."""
    monkeypatch.setattr(series, "MOST_ENTRIES", 25)
    log = read_bytes(megatron(*range(1, 41)))
    assert kinds(log) == ["cut"]
    assert isinstance(log, LogSteps)
    assert (log.steps[-1], len(log.losses)) == (25, 25)


def test_coarse_times_are_told(read_bytes: Read) -> None:
    """Milliseconds without decimals are 5 % of a step of ten of them."""
    assert "coarse" in kinds(read_bytes(megatron(*range(1, 2001), ms="10", total=2000)))
