"""Cards of one model differ: what launches of other cards would have come to on the cards at hand.

The matrix product that every launch of the engine times after its window tells most of it. Of eleven pairs of
unchanged launches on seven H200s alone and in pairs, tokens/s were 2.0 % apart and energy per token 2.2 % (root mean
square, at most 3.6 and 4.6 %); once the product is allowed for, 0.9 and 1.0 % (at most 1.7 and 1.8 %). So it is only
done where the same libraries made the same product, and where the card's watts are what sets the speed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pytest_charllm.judge.tolerances import CARDS_APART, DRAWS_ALL
from pytest_charllm.records import METRICS, BaselineSample, Better, Measurement, Stack, numbers_of

CALIBRATION = "matmul_time"
SAID_BY_IT = frozenset({"throughput", "step_time", "energy_per_token"})
"""Metrics that follow a card's speed at its power cap: as the watts are given, joules do too."""
LIBRARIES = ("torch", "cuda", "rocm", "cudnn", "driver")
"""Software that may change a matrix product by itself. With another of them, a card and its libraries are not told
apart."""


class Pace(NamedTuple):
    """What some launches say of their cards, None where they do not. `product_s`: of the fastest, since one in fifteen
    is 1.7 % longer for no reason of the card's. `power_w`: the mean over their windows."""

    product_s: float | None
    power_w: float | None

    @classmethod
    def on_record(cls, samples: Sequence[BaselineSample]) -> Pace:
        def known(metric: str) -> list[float]:
            return [sample.values[metric] for sample in samples if metric in sample.values]

        return cls._of(known(CALIBRATION), known("mean_power"))

    @classmethod
    def of(cls, launches: Sequence[Measurement]) -> Pace:
        return cls._of(numbers_of(launches, CALIBRATION), numbers_of(launches, "mean_power"))

    @classmethod
    def _of(cls, products_s: Iterable[float], powers_w: Sequence[float]) -> Pace:
        usable = [product_s for product_s in products_s if math.isfinite(product_s) and product_s > 0]
        return cls(min(usable, default=None), statistics.median(powers_w) if powers_w else None)


def same_libraries(stack: Stack, launches: Sequence[Measurement]) -> bool:
    return not any(part in LIBRARIES for launch in launches for part, _, _ in stack.diff(launch.stack))


def card_ratio(there: Pace, here: Pace, limit_w: float | None) -> float:
    """How much longer the cards at hand take for the same product, as a ratio; 1 where that says nothing of a step:
    at this power limit something else sets its pace, or one of both is not known."""
    if there.product_s is None or here.product_s is None or limit_w is None:
        return 1.0
    if any(pace.power_w is None or pace.power_w < DRAWS_ALL * limit_w for pace in (there, here)):
        return 1.0
    return here.product_s / there.product_s


def allowed(ratio: float) -> float:
    """As far as healthy cards differ: what is beyond that stays to be judged."""
    return min(max(ratio, 1 / (1 + CARDS_APART)), 1 + CARDS_APART)


def known_ratio(ratios: Iterable[float]) -> float:
    """That of the metrics for which there is one; 1 where there is none."""
    return next((ratio for ratio in ratios if ratio != 1.0), 1.0)


def on_these(metric: str, samples: Sequence[BaselineSample], ratio: float) -> tuple[BaselineSample, ...]:
    """The samples as cards would have made them that take `ratio` times as long."""
    factor = 1 / ratio if METRICS[metric].better is Better.HIGHER else ratio
    return tuple(
        replace(sample, values={**sample.values, metric: factor * sample.values[metric]})
        if metric in sample.values
        else sample
        for sample in samples
    )
