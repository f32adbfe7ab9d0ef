"""From the spread of recorded launches to a tolerance, and from a tolerance to what would have been seen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_charllm.judge.tolerances import ENOUGH_SAMPLES, NOISE_FACTOR, Tolerance

MAD_TO_SIGMA = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
POWER = 0.9
"""The share of real changes of the size `would_have_seen` names that are called."""


class Band(NamedTuple):
    """How far a value may move, in the metric's own measure (ratio or unit). `sigma` is of one launch."""

    tolerance: float
    sigma: float | None
    provisional: bool
    unreliable: bool


def robust_sigma(samples: Sequence[float], relative: bool) -> float:
    """Standard deviation of a launch from the median absolute deviation, as a ratio of the median where `relative`."""
    middle = statistics.median(samples)
    sigma = MAD_TO_SIGMA * statistics.median(abs(sample - middle) for sample in samples)
    return sigma / abs(middle) if relative else sigma


def band(rule: Tolerance, samples: Sequence[float], relative: bool, floor: float | None = None) -> Band:
    """max(floor, k sigma). Past the cap it is unreliable: noise must not buy a pass.

    With fewer than `ENOUGH_SAMPLES` recorded launches the floor stands alone, and sigma is the assumed one.
    """
    floor = rule.floor if floor is None else floor
    if len(samples) < ENOUGH_SAMPLES:
        return Band(floor, rule.prior_sigma, provisional=True, unreliable=False)
    sigma = robust_sigma(samples, relative)
    tolerance = max(floor, NOISE_FACTOR * sigma)
    return Band(tolerance, sigma, provisional=False, unreliable=tolerance > max(rule.cap, floor))


def would_have_seen(band: Band, launches: int, confirm_launches: int, recorded: int) -> float | None:
    """The smallest true change that is called with probability `POWER`, confirmation included.

    The change observed in a round is normal around the true one, with variance ``sigma^2 (v(launches) + v(recorded))``,
    where ``v(n) = pi / (2 (n + pi/2 - 1))`` is the variance of a median of n (exact for 1, within 2 % for odd n,
    too large for even n). Both rounds have to breach, so each must do so with probability ``sqrt(POWER)``; they are
    taken as independent, which errs on the safe side since they share the reference:
    ``tolerance + z(sqrt(POWER)) sigma sqrt(v(min(launches, confirm_launches)) + v(recorded))``.

    None where the noise of a launch is not known.
    """
    if band.sigma is None:
        return None
    z = statistics.NormalDist().inv_cdf(math.sqrt(POWER))
    spread = math.sqrt(_median_variance(min(launches, confirm_launches)) + _median_variance(recorded))
    return band.tolerance + z * band.sigma * spread


def _median_variance(n: int) -> float:
    return math.pi / (2 * (n + math.pi / 2 - 1))
