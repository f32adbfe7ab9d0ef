"""What runs inside the ranks of a launch, one package an engine: training loops, scripts, collectives alone.

What is beside the packages needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from pytest_charllm.engines.progress import Progress
from pytest_charllm.errors import BadInput
from pytest_charllm.records import RankReport, RankRequest
from pytest_charllm.scenario.capabilities import ENGINES
from pytest_charllm.scenario.spec import COLLECTIVE_ENGINE, SCRIPT_ENGINE

Run = Callable[[RankRequest, Progress], RankReport]


def load(name: str) -> Run:
    """The `run` of an engine. Does not import torch yet. Raises `BadInput` for an engine that does not exist."""
    if name not in (*ENGINES, SCRIPT_ENGINE, COLLECTIVE_ENGINE):
        raise BadInput(f"engine {name!r} is not known; known engines: {', '.join(ENGINES)}")
    run: Run = import_module(f"{__name__}.{name}").run
    return run
