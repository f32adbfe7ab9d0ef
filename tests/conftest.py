"""Options of the project's own tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of a strategy.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parity-seed", type=int, default=1234, metavar="N",
        help="seed of weights and tokens in the parity matrix (pytest tests/ -k parity)",
    )  # fmt: skip


@pytest.fixture(scope="session")
def parity_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--parity-seed"))
