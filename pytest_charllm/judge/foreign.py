"""Cards of one model differ: what launches of other cards would have come to on the cards at hand.

The matrix product that every launch times after its window tells most of it. Of eleven pairs of unchanged launches on
seven H200s alone and in pairs, tokens/s were 2.0 % apart and energy per token 2.2 % (root mean square, at most 3.5 and
4.6 %); against what the product says, 0.9 and 1.0 % (at most 1.8 and 1.9 %). So it is only done where the same
libraries made the same product, and where the card's watts are what sets the speed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_charllm.judge.tolerances import CARDS_APART, HELD_BY_CAP
from pytest_charllm.records import METRICS, BaselineSample, Better, Measurement, Stack, numbers_of

CALIBRATION = "matmul_time"
SAID_BY_IT = frozenset({"throughput", "step_time", "energy_per_token"})
"""Metrics that follow a card's speed at its power cap: as the watts are given, joules do too."""
LIBRARIES = ("torch", "cuda", "rocm", "cudnn", "driver")
"""Software that may change a matrix product by itself. With another of them, a card and its libraries are not told
apart."""


def card_ratio(samples: Sequence[BaselineSample], stack: Stack, launches: Sequence[Measurement]) -> float:
    """How much longer the cards at hand take for the same product, as a ratio; 1 where that says nothing here.

    At most `CARDS_APART`: no healthy card is further behind, so what is beyond that stays to be judged.
    """
    if any(part in LIBRARIES for launch in launches for part, _, _ in stack.diff(launch.stack)):
        return 1.0
    capped = _there(samples, "throttle_power_cap"), _here(launches, "throttle_power_cap")
    there_s, here_s = _there(samples, CALIBRATION), _here(launches, CALIBRATION)
    if there_s is None or here_s is None or any(share is None or share < HELD_BY_CAP for share in capped):
        return 1.0
    return min(max(here_s / there_s, 1 / (1 + CARDS_APART)), 1 + CARDS_APART)


def on_these(metric: str, samples: Sequence[BaselineSample], ratio: float) -> tuple[BaselineSample, ...]:
    """The samples as cards would have made them that take `ratio` times as long."""
    factor = 1 / ratio if METRICS[metric].better is Better.HIGHER else ratio
    return tuple(
        replace(sample, values={**sample.values, metric: factor * sample.values[metric]})
        if metric in sample.values
        else sample
        for sample in samples
    )


def _there(samples: Sequence[BaselineSample], metric: str) -> float | None:
    return _median(sample.values[metric] for sample in samples if metric in sample.values)


def _here(launches: Sequence[Measurement], metric: str) -> float | None:
    return _median(numbers_of(launches, metric))


def _median(numbers: Iterable[float]) -> float | None:
    usable = [number for number in numbers if math.isfinite(number) and number > 0]
    return statistics.median(usable) if usable else None
