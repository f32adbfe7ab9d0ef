"""Tiers as data: how long a window is, how many launches, and which metrics a PASS needs."""

from __future__ import annotations

from msgspec import structs

from pytest_charllm.records.base import Record
from pytest_charllm.records.launch import WindowRule
from pytest_charllm.scenario.spec import Scenario


class Tier(Record, frozen=True, kw_only=True):
    """`required` metrics withhold PASS when they have no evidence; all others only inform or fail."""

    name: str
    launches: int
    """Timed launches of the first round when a baseline exists."""
    bootstrap_launches: int
    """Timed launches when there is none yet."""
    confirm_launches: int
    required: tuple[str, ...]
    window: WindowRule
    diagnostic: bool
    """Whether the diagnostic pass runs."""
    traced: bool = False
    """Whether a launch under the profiler follows the timed ones, where it explains a regression or goes on record."""


_GPU_REQUIRED = (
    "throughput", "energy_per_token", "mean_power", "core_temp_end", "hbm_temp_end", "margin_min",
    "throttle_sw_thermal", "throttle_hw",
)  # fmt: skip

_NIGHTLY = WindowRule(
    tier="nightly", min_steps=30, min_seconds=15.0, warmup_steps=10, warmup_seconds=5.0, warmup_max_steps=200,
    steady_steps=5, steady_ratio=0.02,
)  # fmt: skip
_SMOKE = structs.replace(_NIGHTLY, tier="smoke", min_steps=10, min_seconds=5.0)
_CPU_WINDOW = WindowRule(
    tier="smoke", min_steps=24, min_seconds=0.0, warmup_steps=3, warmup_seconds=0.0, warmup_max_steps=3,
    steady_steps=1, steady_ratio=1.0,
)  # fmt: skip

TIERS: dict[tuple[str, bool], Tier] = {
    ("smoke", False): Tier(
        name="smoke", launches=1, bootstrap_launches=3, confirm_launches=2, required=_GPU_REQUIRED, diagnostic=False,
        window=_SMOKE,
    ),
    ("nightly", False): Tier(
        name="nightly", launches=3, bootstrap_launches=3, confirm_launches=3, required=_GPU_REQUIRED, diagnostic=False,
        traced=True, window=_NIGHTLY,
    ),
    ("weekly", False): Tier(
        name="weekly", launches=5, bootstrap_launches=5, confirm_launches=5, required=_GPU_REQUIRED, diagnostic=False,
        traced=True, window=_NIGHTLY,  # so that it is compared with what nights have put on record
    ),
    ("smoke", True): Tier(
        name="smoke", launches=1, bootstrap_launches=5, confirm_launches=2, required=(), diagnostic=True,
        window=_CPU_WINDOW,
    ),
}  # fmt: skip
"""By (tier name, is it the cpu hardware). On a CPU every tier is smoke."""


def window_of(window: WindowRule, scenario: Scenario) -> WindowRule:
    """The tier's window, or the longer one that the scenario asks for."""
    return structs.replace(window, min_seconds=max(window.min_seconds, 60.0 * scenario.options.soak))


def tier(name: str, is_cpu: bool) -> Tier:
    """The tier of that name on this kind of hardware."""
    return TIERS[("smoke" if is_cpu else name, is_cpu)]
