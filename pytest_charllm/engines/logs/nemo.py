"""NeMo 2: the lines of its progress printer, and its progress bar, which carries the same fields."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, number
from pytest_charllm.engines.logs.protocol import Event, Step

_TIME = re.compile(rf"train_step_timing in s[:=]\s*({NUMBER})", re.ASCII)
_STEP = re.compile(rf"global_step[:=]\s*({COUNT})(?:\.0*)?(?![\d.])", re.ASCII)
_ITERATION = re.compile(rf"epoch (\d{{1,6}}), iteration ({COUNT})/({COUNT})", re.ASCII)
_SEQUENCES = re.compile(rf"global_batch_size[:=]\s*({COUNT})(?:\.0*)?(?![\d.])", re.ASCII)
_LOSS = re.compile(rf"reduced_train_loss[:=]\s*({NUMBER})", re.ASCII)
_TOKENS_PER_S = re.compile(rf"tokens_per_sec_per_gpu[:=]\s*({NUMBER})", re.ASCII)


class NeMo:
    name = "nemo"
    title = "NeMo"
    step_time_from = "printed"
    tokens_per_s_of = "GPU"
    yields_to: frozenset[str] = frozenset()
    remedy = "add NeMo's TimingCallback, so that its lines carry train_step_timing in s"

    def __init__(self) -> None:
        self._untimed = False

    @staticmethod
    def matches(head: str) -> bool:
        return (
            "train_step_timing in s" in head or re.search(r"Training epoch \d+, iteration \d+/\d+ \|", head) is not None
        )

    def events(self, text: str) -> Iterator[Event]:
        step = self._step_of(text)
        if step is None:
            return
        time, sequences, loss = _TIME.search(text), _SEQUENCES.search(text), _LOSS.search(text)
        per_s = _TOKENS_PER_S.search(text)
        told, value = number(time[1]) if time else None, number(loss[1]) if loss else None
        tokens_per_s = number(per_s[1]) if per_s else None
        self._untimed = self._untimed or told is None
        yield Step(
            step=step,
            seconds=told.value if told else None,
            resolution_s=_rounding_s(told.value) if told else 0.0,
            sequences=int(sequences[1]) if sequences else None,
            tokens_per_s=tokens_per_s.value if tokens_per_s else None,
            loss=value.value if value else None,
        )

    @staticmethod
    def _step_of(text: str) -> int | None:
        """Steps done when the line was printed: both counters of a line begin at 0."""
        if "global_step" in text and (step := _STEP.search(text)):
            return int(step[1]) + 1
        if "Training epoch" in text and (iteration := _ITERATION.search(text)):
            return int(iteration[1]) * (int(iteration[3]) + 1) + int(iteration[2]) + 1
        return None

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        if sequences is None:
            return None, "the lines name no global_batch_size"
        return None, f"{sequences} sequences a step, but the log does not name their length"

    def why_untimed(self) -> str:
        return "its lines carry no train_step_timing" if self._untimed else ""


def _rounding_s(seconds: float) -> float:
    """NeMo prints four significant digits and leaves out zeros at the end."""
    return 0.5 * 10.0 ** (math.floor(math.log10(seconds)) - 3) if 0 < seconds < math.inf else 0.0
