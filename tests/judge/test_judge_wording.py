"""Changes in words: a sign that says something, in a unit that the change can be seen in."""

from __future__ import annotations

import pytest

from pytest_charllm.judge.wording import moved


@pytest.mark.parametrize(
    ("metric", "change", "words"),
    [
        ("throughput", -0.061, "-6.1 %"),
        ("throughput", -0.0004, "+0.0 %"),
        ("core_temp_end", 5.2, "+5.2 degC"),
        ("throttle_hw", 0.03, "+3.0 points"),
        ("busyness", -0.03, "-0.03"),
        ("busyness", -0.004, "+0.00"),
        ("host_gap", 0.0025, "+2.5 ms"),
    ],
)
def test_a_change_can_be_seen(metric: str, change: float, words: str) -> None:
    """``wall/CPU 1.10 1.07 -0.0 wall/CPU``: nothing had moved, downwards, by a unit that is a name; parts of a traced
    step moved by 0.0 s."""
    assert moved(metric, change) == words
