"""DeepSpeed: the throughput timer of its engine, and the line of its pipeline engine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, number
from pytest_charllm.engines.logs.protocol import Elapsed, Event, Step

_UNTIMED_STEPS = 2
"""The throughput timer leaves the first steps out of its running average."""

_THROUGHPUT = re.compile(rf"global_step=({COUNT}), RunningAvgSamplesPerSec=({NUMBER})", re.ASCII)
_PIPELINE = re.compile(
    rf"\bsteps: ({COUNT}) loss: ({NUMBER}) .{{0,400}}?iter time \(s\): ({NUMBER}) samples/sec: ({NUMBER})", re.ASCII
)
_PROGRESS = re.compile(rf"\bstep=({COUNT}), skipped=\d+, lr=", re.ASCII)
_SEQUENCES = re.compile(rf"\btrain_batch_size\s?(?:\.+ |\":\s?)({COUNT})\b", re.ASCII)


class DeepSpeed:
    name = "deepspeed"
    title = "DeepSpeed"
    step_time_from = "samples per second"
    tokens_per_s_of = ""
    yields_to = frozenset({"megatron-lm", "huggingface", "lightning"})
    remedy = 'set "steps_per_print": 1 and "log_level": "info" in its configuration'

    def __init__(self) -> None:
        self._sequences: int | None = None
        self._pipeline = False

    @staticmethod
    def matches(head: str) -> bool:
        return any(line in head for line in ("RunningAvgSamplesPerSec=", "DeepSpeedEngine configuration")) or (
            _PIPELINE.search(head) is not None or _PROGRESS.search(head) is not None
        )

    def events(self, text: str) -> Iterator[Event]:
        if "iter time" in text and (pipeline := _PIPELINE.search(text)):
            self._pipeline, self.step_time_from = True, "printed"
            yield self._pipeline_step(*pipeline.groups())
        elif "RunningAvgSamplesPerSec" in text and (throughput := _THROUGHPUT.search(text)):
            yield self._average(int(throughput[1]), throughput[2])
        elif "skipped=" in text and (progress := _PROGRESS.search(text)):
            yield Step(step=int(progress[1]))
        elif "train_batch_size" in text and (sequences := _SEQUENCES.search(text)):
            self._sequences = int(sequences[1])

    def _pipeline_step(self, step: str, loss: str, iteration_s: str, samples_per_s: str) -> Step:
        """Milliseconds are too coarse for short steps, samples per second for long ones: the finer of the two."""
        value, told, per_s = number(loss), number(iteration_s), number(samples_per_s)
        times = [(told.half_unit, told.value)] if told else []
        if self._sequences and per_s and per_s.value > 0:
            seconds = self._sequences / per_s.value
            times.append((seconds * per_s.half_unit / per_s.value, seconds))
        rounding_s, mean_s = min(times, default=(0.0, None))
        return Step(step=int(step), seconds=mean_s, resolution_s=rounding_s, loss=value.value if value else None)

    def _average(self, step: int, samples_per_s: str) -> Event:
        """The running average is over all timed steps, so two of them tell the mean of the steps in between."""
        told, steps = number(samples_per_s), step - _UNTIMED_STEPS
        if self._pipeline or self._sequences is None or steps < 1 or told is None or not told.value > 0:
            return Step(step=step)
        # Printed in full, not rounded.
        return Elapsed(step=step, seconds=steps * self._sequences / told.value, resolution_s=0.0, since="timer")

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        if self._sequences is None:
            return None, "train_batch_size is not in the log"
        return None, f"train_batch_size is {self._sequences}, but the log does not name the length of a sequence"

    def why_untimed(self) -> str:
        return "" if self._sequences else "samples per second say no step time without train_batch_size"
