"""What is judged beside all else where a window is long enough for the board to settle: `Options.soak`."""

from __future__ import annotations

from pytest_charllm.judge.tolerances import Match, Tolerance

SOAK: dict[str, Tolerance] = {
    "core_temp_steady": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_WIDENS, other_card=8.0),
    "thermal_resistance": Tolerance(floor=0.10, cap=0.30, match=Match.CARD_WIDENS, other_card=0.30),
    "core_temp_spread": Tolerance(floor=5.0, cap=8.0, match=Match.CARD_WIDENS, other_card=8.0),
}
"""Not measured on any GPU yet. The air that a node takes in moves degrees by some 5, degrees a watt not at all."""

REQUIRED = ("core_temp_steady",)
"""A soak that never settled says nothing of what it was for."""
