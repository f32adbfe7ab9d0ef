"""Each trainer's format, read from a sample that was written by hand and checked against the trainer's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_charllm.engines.logs import READERS, read_log, read_logs
from pytest_charllm.errors import BadInput
from pytest_charllm.records import LogProblem, LogStatus, LogSteps

DATA = Path(__file__).parent / "data"

# What the samples were checked against:
# megatron.log            NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py training_log, arguments.py
# nemo.log                NVIDIA-NeMo/NeMo 8cfedd7, lightning/pytorch/callbacks/progress_printer.py
# torchtitan.log          pytorch/torchtitan b5bcd76, components/metrics.py, trainer.py, distributed/parallel_dims.py
# deepspeed*.log          DeepSpeed 0.19.8, utils/timer.py, runtime/pipe/engine.py, and the output of a run of it
# huggingface.log         transformers 5.24.0, trainer_callback.py; the bar is tqdm 4.70.1 on a simulated clock
# lightning.log           Lightning-AI/pytorch-lightning 7f0c343, callbacks/progress/tqdm_progress.py; the bar likewise

Read = Callable[..., LogSteps | LogProblem]


def steps_of(name: str) -> LogSteps:
    result = read_log(DATA / name)
    assert isinstance(result, LogSteps)
    assert len(result.steps) == len(result.spans) == len(result.step_time_s)
    return result


def test_megatron() -> None:
    """Arguments are printed by rank 0 and steps by the last rank: tokens need both, under different labels."""
    log = steps_of("megatron.log")
    assert (log.reader, log.steps, set(log.spans)) == ("megatron-lm", tuple(range(12, 31)), {1})
    assert log.step_time_s[0] == pytest.approx(0.512, abs=0.003)
    assert log.resolution_s == pytest.approx(5e-5)
    assert log.tokens_per_step == 16 * 2048
    assert log.losses[0] == pytest.approx(10.75)
    assert len(log.losses) == 30
    assert (log.warmup.steps, log.warmup.steady, log.findings) == (11, True, ())


def test_nemo() -> None:
    """Its counters begin at 0, and the length of a sequence is not in the log: no tokens rather than a guess."""
    log = steps_of("nemo.log")
    assert (log.reader, log.steps) == ("nemo", tuple(range(12, 31)))
    assert log.step_time_s == pytest.approx([7.56] * 19, abs=0.03)
    assert log.resolution_s == pytest.approx(0.0005)
    assert log.tokens_per_step is None
    assert "512 sequences" in log.tokens_why


def test_torchtitan() -> None:
    """Only tokens/s a GPU are printed, with thousands separators; the step time needs mesh and batch."""
    log = steps_of("torchtitan.log")
    assert (log.reader, log.steps, set(log.spans)) == ("torchtitan", tuple(range(20, 121, 5)), {5})
    assert (log.tokens_per_step, log.tokens_per_s_of) == (32768, "GPU")
    assert log.tokens_per_s[0] == pytest.approx(6820, abs=10)
    assert log.step_time_s == pytest.approx([32768 / (rate * 8) for rate in log.tokens_per_s])
    assert len(log.losses) == 25  # not the validation's
    assert [finding.kind for finding in log.findings] == ["interleaved"]


def test_torchtitan_before_it_counted_in_tokens(read_bytes: Read) -> None:
    """Versions until August 2026 say batch and sequence; those of 2024 name the mesh's dimensions in a list."""
    head = (
        "[rank0]:[titan] 2025-01-01 10:00:00,000 - root - INFO - Building 2-D device mesh with ['dp', 'tp'], [4, 2]\n"
        "[rank0]:[titan] 2025-01-01 10:00:01,000 - root - INFO - Trainer is initialized with local batch size 1, "
        "global batch size 8, gradient accumulation steps 2, sequence length 4096, total steps 1000 (warmup 200)\n"
    )
    line = "[rank0]:[titan] - root - INFO - step: {:2}  loss:  9.1234  memory: 40.10GiB(42.30%)  tps: 4,096  mfu: N/A\n"
    log = read_bytes(head + "".join(line.format(step) for step in (1, *range(10, 301, 10))))
    assert isinstance(log, LogSteps)
    assert (log.tokens_per_step, log.step_time_s[0]) == (32768, 1.0)
    assert [finding.kind for finding in log.findings] == ["ends-early"]


def test_deepspeed_throughput_timer() -> None:
    """The printed running average is flat where a step is not: two of them tell the steps in between."""
    log = steps_of("deepspeed.log")
    assert (log.reader, log.step_time_from, log.steps[-1]) == ("deepspeed", "samples per second", 100)
    assert log.step_time_s == pytest.approx([0.25] * len(log.steps), abs=0.002)
    assert set(log.spans) == {5}
    assert (log.tokens_per_step, log.losses) == (None, ())
    assert "train_batch_size is 32" in log.tokens_why


def test_deepspeed_pipeline_engine() -> None:
    """Three decimals of a second are coarse; samples per second on the same line are not."""
    log = steps_of("deepspeed_pipeline.log")
    assert (log.reader, log.step_time_from) == ("deepspeed", "printed")
    assert log.step_time_s == pytest.approx([0.385] * len(log.steps), abs=0.003)
    assert log.resolution_s < 5e-6
    assert (len(log.losses), log.losses[0]) == (20, pytest.approx(8.0))


def test_hugging_face() -> None:
    """An evaluation's bar has no label either, and the bar that closes shows the average, first step included."""
    log = steps_of("huggingface.log")
    assert (log.reader, log.steps[-1]) == ("huggingface", 59)
    assert log.step_time_s[-1] == pytest.approx(1.62, abs=0.01)
    assert max(log.step_time_s) < 1.75
    assert (log.tokens_per_step, log.tokens_why) == (32 * 512, "num_input_tokens_seen from step 10 to 60")
    assert log.losses == (9.0, 8.5, 8.0, 7.5, 7.0, 6.5)
    assert log.findings == ()


def test_hugging_face_before_version_5(read_bytes: Read, sample: Callable[[str], bytes]) -> None:
    """Numbers without quotes, no banner (transformers is silent by default), evaluation before training."""
    lines = sample("huggingface.log").decode().split("\n", 4)[4]
    early = "\r100%|##########| 8/8 [00:03<00:00,  2.50it/s]\n"
    log = read_bytes(early + lines.replace("'loss': '9'", "'loss': 9.0").replace("'1.25'", "1.25"))
    assert isinstance(log, LogSteps)
    assert (log.steps[-1], log.losses[0]) == (59, 9.0)


def test_hugging_face_bar_and_metrics_in_two_files(tmp_path: Path, sample: Callable[[str], bytes]) -> None:
    """torchrun keeps stderr, where the bar is, and stdout, where the losses are, apart: neither is enough alone."""
    lines = re.split(r"[\r\n]", sample("huggingface.log").decode().split("\n", 4)[4])
    stdout, stderr = tmp_path / "stdout.log", tmp_path / "stderr.log"
    stdout.write_text("".join(f"{line}\n" for line in lines if line.startswith("{")))
    stderr.write_text("".join(f"{line}\r" for line in lines if not line.startswith("{")), newline="")
    alone = read_log(stdout)
    assert isinstance(alone, LogProblem)
    assert (alone.status, alone.reader) == (LogStatus.NO_STEPS, "huggingface")
    log = read_logs([stdout, stderr])
    assert isinstance(log, LogSteps)
    assert (log.steps[-1], len(log.losses)) == (59, 6)


def test_lightning_tqdm() -> None:
    """The bar shows the average since the epoch began: its digits tell a span of steps, and only once it is long."""
    log = steps_of("lightning.log")
    assert log.reader == "lightning"
    assert log.step_time_s == pytest.approx([0.405] * len(log.steps), rel=0.01)
    assert log.resolution_s < 0.01 * 0.405
    assert log.losses[-1] == pytest.approx(1.7, abs=0.03)
    assert "restarted" not in [finding.kind for finding in log.findings]  # the second epoch's bar begins at 0


def test_lightning_rich(read_bytes: Read) -> None:
    """rich writes the epoch's last number after a slash, colons for equals signs, and a bullet between its times."""
    line = "Epoch 0/4 ━━━━━━━━━━━━━━╸━━━━━━ {}/60 0:00:0{} • 0:00:30 1.98it/s v_num: 0.000 train_loss: 0.693\n"
    log = read_bytes("".join(line.format(step, step % 10) for step in range(1, 61)))
    assert isinstance(log, LogSteps)
    assert (log.reader, log.step_time_s[0], log.losses[0]) == ("lightning", pytest.approx(1 / 1.98), 0.693)


def test_a_running_average_under_lightnings_label_is_not_taken_for_a_total(read_bytes: Read) -> None:
    """tqdm's own bars show a running average: read as the average of the epoch they would give any step time."""
    line = "\rEpoch 0:  10%|#         | {}/400 [{:02d}:{:02d}<04:00,  9.99it/s, v_num=0]"
    bars = "".join(line.format(step, 2 * step // 60, 2 * step % 60) for step in range(1, 401)) + "\n"
    log = read_bytes(bars)
    assert isinstance(log, LogSteps)
    assert log.step_time_s == pytest.approx([2.0] * len(log.steps), rel=0.01)


def test_the_trainer_wins_over_the_engine_below_it(read_bytes: Read, sample: Callable[[str], bytes]) -> None:
    """Trainer with DeepSpeed prints the lines of both, and only Trainer's count its steps."""
    log = read_bytes(sample("deepspeed.log") + sample("huggingface.log"))
    assert log.reader == "huggingface"


def test_two_trainers_in_one_file_are_not_guessed_between(read_bytes: Read, sample: Callable[[str], bytes]) -> None:
    """A file that two jobs append to."""
    both = sample("nemo.log") + sample("torchtitan.log")
    log = read_bytes(both)
    assert isinstance(log, LogProblem)
    assert (log.status, log.reader) == (LogStatus.AMBIGUOUS, None)
    assert "nemo and torchtitan" in log.message
    assert isinstance(read_bytes(both, "nemo"), LogSteps)


def test_an_unknown_reader_is_the_declarations_fault() -> None:
    """A misspelt name must not read as a log without steps."""
    with pytest.raises(BadInput, match="did you mean torchtitan"):
        read_log(DATA / "torchtitan.log", "torchtitn")


def test_readers_are_found_by_their_own_names() -> None:
    """A reader that yields to a name that does not exist yields to nobody."""
    assert all(reader.yields_to <= set(READERS) for reader in READERS.values())
