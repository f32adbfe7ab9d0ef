"""What ``from pytest_charllm import ...`` gives."""

from __future__ import annotations

import pytest

import pytest_charllm


@pytest.mark.parametrize("name", pytest_charllm.__all__)
def test_every_public_name_loads(name: str) -> None:
    """They load on first use: one that its module does not have would fail only in somebody's suite."""
    assert getattr(pytest_charllm, name) is not None


def test_no_other_name_loads() -> None:
    """A lazy package that answers to everything hides a typing error in a suite until it runs."""
    with pytest.raises(AttributeError, match="no attribute 'scenario_'"):
        pytest_charllm.scenario_  # noqa: B018
