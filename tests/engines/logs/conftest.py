"""Sample logs, and their reading from bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_charllm.engines.logs import read_log
from pytest_charllm.records import LogProblem, LogSteps

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.name for path in DATA.glob("*.log"))

Read = Callable[..., LogSteps | LogProblem]


@pytest.fixture(scope="session")
def read_bytes(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Reads bytes as if they were a log; of session scope, so that hypothesis may use it."""
    path = tmp_path_factory.mktemp("logs") / "train.log"

    def read(data: bytes | str, *args: Any, **kwargs: Any) -> LogSteps | LogProblem:
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return read_log(path, *args, **kwargs)

    return read


@pytest.fixture(scope="session")
def sample() -> Callable[[str], bytes]:
    return lambda name: (DATA / name).read_bytes()


@pytest.fixture(scope="session", params=SAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    """Each sample in turn. A name, so that a failing example prints no log."""
    return str(request.param)
