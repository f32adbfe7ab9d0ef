"""Megatron-LM, and what prints its line: Megatron-DeepSpeed, Megatron-Bridge."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, number
from pytest_charllm.engines.logs.protocol import Event, Restart, Step

_STEP = re.compile(rf"iteration\s+({COUNT})/\s*({COUNT})\s*\|", re.ASCII)
_TIME = re.compile(rf"elapsed time per iteration \((ms|s)\):\s*({NUMBER})", re.ASCII)
_SEQUENCES = re.compile(rf"global batch size:\s*({COUNT})", re.ASCII)
_LOSS = re.compile(rf"\|\s*lm loss:\s*({NUMBER})", re.ASCII)
_NAN = re.compile(r"number of nan iterations:\s*0*[1-9]", re.ASCII)
_TGS = re.compile(rf"tokens per gpu per second \(tgs\):\s*({NUMBER})", re.ASCII)
_LENGTH = re.compile(rf"^\s*seq_length \.+ ({COUNT})\s*$", re.ASCII)


class Megatron:
    name = "megatron-lm"
    title = "Megatron-LM"
    step_time_from = "printed"
    tokens_per_s_of = "GPU"
    yields_to: frozenset[str] = frozenset()
    remedy = "train with --log-interval 1 and keep the output of the last rank"

    def __init__(self) -> None:
        self._length: int | None = None

    @staticmethod
    def matches(head: str) -> bool:
        return re.search(r"iteration\s+\d+/\s*\d+\s*\|.{0,400}elapsed time per iteration", head) is not None or (
            "[before the start of training step]" in head
        )

    def events(self, text: str) -> Iterator[Event]:
        if "seq_length" in text and (length := _LENGTH.match(text)):
            self._length = int(length[1])
        elif "[before the start of training step]" in text:
            yield Restart(everywhere=True)
        elif "iteration" in text and (step := _STEP.search(text)) and (time := _TIME.search(text)):
            yield self._step(text, step, time)

    def _step(self, text: str, step: re.Match[str], time: re.Match[str]) -> Step:
        told, scale = number(time[2]), 1e-3 if time[1] == "ms" else 1.0
        sequences, tgs, loss = _SEQUENCES.search(text), _TGS.search(text), _LOSS.search(text)
        tokens_per_s, value = number(tgs[1]) if tgs else None, number(loss[1]) if loss else None
        return Step(
            step=int(step[1]),
            total=int(step[2]),
            seconds=told.value * scale if told else None,
            resolution_s=told.half_unit * scale if told else 0.0,
            sequences=int(sequences[1]) if sequences else None,
            tokens_per_s=tokens_per_s.value if tokens_per_s else None,
            loss=math.nan if _NAN.search(text) else value.value if value else None,  # NaN itself is not printed
        )

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        if sequences is None:
            return None, "the lines name no global batch size"
        if self._length is None:
            return None, f"{sequences} sequences a step, but seq_length is not in the log: rank 0 prints the arguments"
        return sequences * self._length, f"global batch size {sequences} x seq_length {self._length}"

    def why_untimed(self) -> str:
        return ""
