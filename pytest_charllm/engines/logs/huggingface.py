"""Hugging Face Trainer, and Accelerate's examples: tqdm's bar over optimizer steps, and dictionaries of metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.bars import Bar, bar_in
from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, Number, number
from pytest_charllm.engines.logs.protocol import Event, Loss, Restart, Step

_GROUPED = r"\d[\d,]{0,14}"
_LOSS = re.compile(rf"\{{'loss': '?({NUMBER})", re.ASCII)
_NAN_GRADIENT = re.compile(r"'grad_norm': '?nan\b", re.ASCII)
_TOKENS_SEEN = re.compile(rf"'num_input_tokens_seen': '?({COUNT})\b", re.ASCII)
_TOTAL = re.compile(rf"Total optimization steps = ({_GROUPED})", re.ASCII)
_SEQUENCES = re.compile(
    rf"Total train batch size \(w\. parallel, distributed & accumulation\) = ({_GROUPED})", re.ASCII
)
_LABELS = frozenset({"", "Steps"})
"""Trainer's bars have no label, evaluation's neither; Accelerate's examples write "Steps"."""


class HuggingFace:
    name = "huggingface"
    title = "Hugging Face Trainer / Accelerate"
    step_time_from = "progress bar, running average"
    tokens_per_s_of = ""
    yields_to: frozenset[str] = frozenset()
    remedy = "train with disable_tqdm=False, so that a progress bar tells the step times"

    def __init__(self) -> None:
        self._total: int | None = None
        self._announced = False
        self._last: Bar | None = None
        self._falling_s: float | None = None
        """Average that the bar showed last, since an evaluation; None where there was none, or it is forgotten."""
        self._sequences: int | None = None
        self._tokens_seen: int | None = None
        self._tokens_at: list[tuple[int, int]] = []
        """(step, tokens seen) of the first and of the last line that tells them."""

    @staticmethod
    def matches(head: str) -> bool:
        return "***** Running training *****" in head or (
            re.search(r"\{'loss': '?[-\dni].{0,400}'(?:learning_rate|epoch)':|\{'train_runtime': ", head) is not None
        )

    def events(self, text: str) -> Iterator[Event]:
        if (bar := bar_in(text)) is not None:
            yield from self._bar(bar)
        elif "{'" in text:
            yield from self._metrics(text)
        elif "***** Running training *****" in text:
            self._tokens_at.clear()
            yield Restart(everywhere=False)
        elif total := _TOTAL.search(text):
            self._total, self._announced = int(total[1].replace(",", "")), True
        elif sequences := _SEQUENCES.search(text):
            self._sequences = int(sequences[1].replace(",", ""))

    def _bar(self, bar: Bar) -> Iterator[Event]:
        if bar.label not in _LABELS:
            return
        before, self._last = self._last, bar
        if self._total is None:
            self._total = bar.total
        if bar.total != self._total:
            self._falling_s = math.inf  # evaluation
            return
        if self._tokens_seen is not None:
            self._tokens_at[1:] = [(bar.done, self._tokens_seen)]
            self._tokens_seen = None
        rate = self._steady(bar, before)
        yield Step(
            step=bar.done,
            total=bar.total,
            seconds=rate.value if rate else None,
            resolution_s=rate.half_unit if rate else 0.0,
        )

    def _steady(self, bar: Bar, before: Bar | None) -> Number | None:
        """The bar's running average, unless something else is in it.

        A bar that closes shows the average over everything, the first step included. After an evaluation the average
        falls until the evaluation is forgotten.
        """
        if bar.rate is None or bar.done == bar.total:
            return None
        if self._falling_s is not None and (before is None or before.done != bar.done):
            falls, self._falling_s = bar.rate.value < self._falling_s, bar.rate.value
            if not falls:
                self._falling_s = None
        return None if self._falling_s is not None else bar.rate

    def _metrics(self, text: str) -> Iterator[Event]:
        loss = _LOSS.search(text)
        if loss is None:
            return
        if not self._announced and self._last is not None and self._last.total != self._total:
            self._total = self._last.total  # the bar before was that of an evaluation
            self._tokens_at.clear()
            yield Restart(everywhere=False)
        if seen := _TOKENS_SEEN.search(text):
            self._tokens_seen = int(seen[1])
        if value := number(loss[1]):
            # Trainer leaves a NaN out of the loss it averages (logging_nan_inf_filter), so that 0 is all that is left.
            filtered = value.value == 0 and _NAN_GRADIENT.search(text) is not None
            yield Loss(math.nan if filtered else value.value)

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        if len(self._tokens_at) == 2:
            (first, before), (last, after) = self._tokens_at
            if last > first and after > before:
                return round((after - before) / (last - first)), f"num_input_tokens_seen from step {first} to {last}"
        told = "" if self._sequences is None else f"{self._sequences} sequences a step, but "
        return None, f"{told}the log counts no tokens: include_num_input_tokens_seen=True makes it"

    def why_untimed(self) -> str:
        return "" if self._last else "there is no progress bar"
