"""Marks of the suites."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: a row or two of each question; minutes, not hours")
