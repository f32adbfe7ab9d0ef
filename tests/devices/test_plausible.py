from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.devices.plausible import Plausible


def kept(plausible: Plausible, quantity: str, raw: list[float]) -> list[float | None]:
    answers = []
    for value in raw:
        values: dict[str, float | None] = {quantity: value}
        missing: dict[str, str] = {}
        plausible.filter(values, missing)
        assert (values[quantity] is None) == (quantity in missing)
        answers.append(values[quantity])
    return answers


@given(st.lists(st.floats(min_value=0, max_value=1e12)))
def test_a_rising_counter_passes_untouched(raw):
    """A filter that drops good samples lowers coverage and makes launches 'not measured'."""
    rising = sorted(raw)
    assert kept(Plausible(), "energy_j", rising) == rising


def test_a_counter_glitch_costs_one_sample():
    """Comparing with the highest value ever seen would null all the rest of the launch after one glitch upward."""
    assert kept(Plausible(), "energy_j", [100.0, 5.0, 110.0, 120.0]) == [100.0, None, 110.0, 120.0]
    assert kept(Plausible(), "energy_j", [100.0, 9e9, 110.0, 120.0]) == [100.0, 9e9, None, 120.0]


def test_a_counter_reset_stays_visible():
    """After a driver reload the counter starts anew: the window across it must be seen to go backwards."""
    assert kept(Plausible(), "throttle_hw_brake_ns", [500.0, 3.0, 4.0]) == [500.0, None, 4.0]


def test_peaks_above_the_limit_are_real():
    """An H200 limited to 700 W shows instant peaks of 840 W; they must pass, 1.5 times the limit must not."""
    assert kept(Plausible(power_limit_w=700.0), "power_instant_w", [840.0, 1050.0]) == [840.0, None]


def test_an_unknown_limit_filters_nothing_but_nonsense():
    """Without a known limit the upper check is off; zero watts stays impossible for a board that answers."""
    assert kept(Plausible(), "power_average_w", [5000.0, 0.0, -1.0]) == [5000.0, None, None]


def test_an_unsigned_margin_is_caught():
    """-2 read as unsigned is 4294967294 degrees of margin: the coolest GPU ever."""
    assert kept(Plausible(), "margin_c", [-2.0, 0.0, 53.0, 4294967294.0]) == [-2.0, 0.0, 53.0, None]


def test_temperatures_in_millidegrees_are_caught():
    """A vendor call that changes its unit between versions reads 45000 degC."""
    assert kept(Plausible(), "hbm_temp_c", [45.0, 45000.0, -300.0]) == [45.0, None, None]
