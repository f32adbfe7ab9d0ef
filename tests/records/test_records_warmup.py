"""When warm-up ends and how long the window becomes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records import WindowRule, tier
from pytest_charllm.records.warmup import steady_step_s, warmup_ended, window_steps

GPU = tier("nightly", False).window
CPU = tier("smoke", True).window


def end(rule: WindowRule, step_s: list[float]) -> int | None:
    """After how many of these steps warm-up ends."""
    return next((n for n in range(1, len(step_s) + 1) if warmup_ended(rule, step_s[:n])), None)


def test_compilation_counts_as_no_warmth() -> None:
    """A minute of compiling leaves a GPU cold: five seconds of steps must still follow."""
    assert end(GPU, [60.0] + [0.5] * 50) == 11
    assert end(GPU, [60.0] + [0.125] * 99) == 41


def test_ends_once_groups_agree() -> None:
    """Steps that still speed up are not the steady state, however long they have lasted."""
    falling = [1.0 * 0.97**step for step in range(40)]
    assert end(GPU, falling) is None
    assert end(GPU, [*falling, *[falling[-1]] * 20]) == 47


def test_gives_up_and_says_so() -> None:
    """A step time that never settles must not warm up for ever, nor pass as steady."""
    restless = [1.0 if step // 5 % 2 else 2.0 for step in range(GPU.warmup_max_steps)]
    outcome = warmup_ended(GPU, restless)
    assert outcome is not None
    assert outcome.steps == GPU.warmup_max_steps
    assert not outcome.steady
    assert "not steady" in outcome.reason


def test_one_odd_step_does_not_decide() -> None:
    """Medians of groups: a single hiccup neither ends nor prolongs warm-up."""
    assert end(GPU, [9.0] + [1.0] * 8 + [3.0] + [1.0] * 5) == 11


def test_cpu_rule_is_three_steps() -> None:
    """The CPU tier states a fixed warm-up; its first step is slow and its ratio lets everything pass."""
    assert end(CPU, [0.5, 0.1, 0.15, 0.1]) == 3


@given(st.integers(1, 50), st.floats(0.0, 30.0), st.floats(1e-3, 20.0))
def test_window_reaches_both_minima(min_steps: int, min_seconds: float, step_s: float) -> None:
    """A window one step too short would be incomparable with its own rule."""
    rule = msgspec.structs.replace(GPU, min_steps=min_steps, min_seconds=min_seconds)
    steps = window_steps(rule, step_s)
    assert steps >= min_steps
    assert steps * step_s >= min_seconds
    assert steps == min_steps or (steps - 2) * step_s <= 1.05 * min_seconds


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=250))
def test_always_ends_by_the_limit(step_s: list[float]) -> None:
    """Whatever the steps do."""
    padded = step_s + [step_s[-1]] * (GPU.warmup_max_steps - len(step_s))
    ended = end(GPU, padded)
    assert ended is not None
    assert GPU.warmup_steps <= ended <= GPU.warmup_max_steps


def test_steady_step_is_the_last_group() -> None:
    """The window's length must not be planned from steps before the clocks settled."""
    assert steady_step_s(GPU, [9.0, 5.0, 1.0, 1.1, 1.0, 1.2, 1.0]) == pytest.approx(1.0)
