"""Lightning: tqdm's bar of an epoch, which shows the average since the epoch began, or rich's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_charllm.engines.logs.bars import Bar, bar_in, seconds_of
from pytest_charllm.engines.logs.numbers import COUNT, NUMBER, number
from pytest_charllm.engines.logs.protocol import Elapsed, Event, Step

_EPOCH = re.compile(r"\bEpoch (\d{1,6})\b", re.ASCII)
_RICH = re.compile(
    rf"\bEpoch (?P<epoch>\d{{1,6}})(?:/\d+)?\s.{{0,400}}?\s(?P<done>{COUNT})/(?P<total>{COUNT})\s+"
    rf"[\d:, day]+ • \S+\s+(?P<rate>{NUMBER})it/s(?P<rest>.*)",
    re.ASCII,
)
_LOSS = re.compile(rf"(?<![\w/])(?:train[_/])?loss(?:_step)?[=:]\s*({NUMBER})", re.ASCII)
_CUT_S = 0.5
"""Elapsed time is cut to whole seconds, so it is half a second more, give or take as much."""


class Lightning:
    name = "lightning"
    title = "Lightning"
    step_time_from = "progress bar; a step is a batch of the bar"
    tokens_per_s_of = ""
    yields_to = frozenset({"nemo"})
    remedy = "keep its progress bar on (TQDMProgressBar, refresh_rate=1), and train for longer"

    @staticmethod
    def matches(head: str) -> bool:
        return re.search(r"\bEpoch \d.{0,400}it/s.{0,400}\bv_num[=:]", head) is not None

    def events(self, text: str) -> Iterator[Event]:
        if "Epoch" not in text:
            return
        if (bar := bar_in(text)) is not None:
            # A bar that is set back for the next epoch shows 0 under the label of the last.
            if bar.done and (epoch := _EPOCH.search(bar.label)):
                yield self._tqdm(bar, int(epoch[1]))
        elif rich := _RICH.search(text):
            yield from self._rich(rich)

    def _tqdm(self, bar: Bar, epoch: int) -> Event:
        step, loss = epoch * bar.total + bar.done, _loss(bar.rest)
        if bar.elapsed_s is None:
            return Step(step=step, loss=loss)
        seconds, resolution_s = bar.elapsed_s + _CUT_S, _CUT_S
        if bar.rate is not None:
            average_s, rounding_s = bar.done * bar.rate.value, bar.done * bar.rate.half_unit
            # A bar that shows a running average, of a script that is no Lightning, contradicts its own clock.
            if abs(average_s - seconds) <= rounding_s + resolution_s and rounding_s < resolution_s:
                seconds, resolution_s = average_s, rounding_s
        return Elapsed(step=step, seconds=seconds, resolution_s=resolution_s, since=epoch, loss=loss)

    @staticmethod
    def _rich(rich: re.Match[str]) -> Iterator[Event]:
        done, total, rate = int(rich["done"]), int(rich["total"]), seconds_of(rich["rate"], "it/s")
        if done <= total:
            yield Step(
                step=int(rich["epoch"]) * total + done,
                seconds=rate.value if rate else None,
                resolution_s=rate.half_unit if rate else 0.0,
                loss=_loss(rich["rest"]),
            )

    def tokens(self, sequences: int | None) -> tuple[int | None, str]:
        return None, "Lightning's bar counts batches, not tokens"

    def why_untimed(self) -> str:
        return "the bar's times are too coarse for the few steps there are"


def _loss(postfix: str) -> float | None:
    match = _LOSS.search(postfix)
    value = number(match[1]) if match else None
    return value.value if value else None
