"""torchtitan: tokens per second of a GPU on the step lines, and what a step is on the lines before training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, number
from pytest_charllm.engines.logs.protocol import Event, Restart, Step

_STEP = re.compile(rf"(?<!validate )\bstep:\s*({COUNT})\s+loss:\s*({NUMBER})", re.ASCII)
_TOKENS_PER_S = re.compile(rf"\btps:\s*({NUMBER})", re.ASCII)
_TOKENS = re.compile(rf"({COUNT}) tokens per train step", re.ASCII)
_BATCH = re.compile(rf"global batch size ({COUNT}),.*sequence length ({COUNT})", re.ASCII)
_TOTAL = re.compile(rf"total steps ({COUNT})", re.ASCII)
_DEGREES = re.compile(r"\b(?:pp|dp_replicate|dp_shard|cp|tp)=(\d{1,7})\b", re.ASCII)
_DIMENSIONS = re.compile(r"Building \d+-D device mesh with \[[^\]]{0,200}\], \[((?:\d{1,7}(?:, )?){0,8})\]", re.ASCII)


class Torchtitan:
    name = "torchtitan"
    title = "torchtitan"
    step_time_from = "tokens per second"
    tokens_per_s_of = "GPU"
    yields_to: frozenset[str] = frozenset()
    remedy = "train with --metrics.log_freq 1 and keep the whole output of rank 0, or of the last stage's first rank"

    def __init__(self) -> None:
        self._sequences: tuple[int, int] | None = None
        self._tokens: int | None = None
        self._gpus: int | None = None
        self._total: int | None = None

    @staticmethod
    def matches(head: str) -> bool:
        return re.search(r"step:\s*\d+\s+loss:.{0,400}\btps:", head) is not None or "[titan]" in head

    def events(self, text: str) -> Iterator[Event]:
        if "tps:" in text and (step := _STEP.search(text)):
            yield self._step(text, step)
        elif "Training starts at step" in text:
            yield Restart(everywhere=False)
        elif "Trainer is initialized with" in text:
            self._about_steps(text)
        elif "device mesh with" in text:
            self._about_gpus(text)

    def _step(self, text: str, step: re.Match[str]) -> Step:
        per_s, loss = _TOKENS_PER_S.search(text), number(step[2])
        told = number(per_s[1], grouped=True) if per_s else None
        seconds, rounding = None, 0.0
        if told and told.value > 0 and self._tokens and self._gpus:
            seconds = self._tokens / (told.value * self._gpus)
            rounding = told.half_unit / told.value
        return Step(
            step=int(step[1]),
            total=self._total,
            seconds=seconds,
            resolution_s=seconds * rounding if seconds else 0.0,
            tokens_per_s=told.value if told else None,
            loss=loss.value if loss else None,
        )

    def _about_steps(self, text: str) -> None:
        if tokens := _TOKENS.search(text):
            self._tokens = int(tokens[1])
        elif batch := _BATCH.search(text):
            self._sequences = int(batch[1]), int(batch[2])
            self._tokens = math.prod(self._sequences)
        if total := _TOTAL.search(text):
            self._total = int(total[1])

    def _about_gpus(self, text: str) -> None:
        if dimensions := _DIMENSIONS.search(text):
            self._gpus = math.prod(int(size) for size in dimensions[1].split(",") if size.strip())
        elif degrees := _DEGREES.findall(text):
            self._gpus = math.prod(int(degree) for degree in degrees)

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        if self._tokens is None:
            return None, "no line says what the trainer is initialized with"
        if self._sequences is None:
            return self._tokens, "tokens per train step"
        return self._tokens, "global batch size {} x sequence length {}".format(*self._sequences)

    def why_untimed(self) -> str:
        missing = [
            line
            for line, known in (("Trainer is initialized with", self._tokens), ("Building device mesh", self._gpus))
            if not known
        ]
        return (
            f"tokens per second say no step time without the line {' and '.join(map(repr, missing))}" if missing else ""
        )
