"""Training loops, one package or file an engine. They import torch, and run only inside the ranks of a launch."""

from __future__ import annotations

from collections.abc import Callable

from pytest_charllm.engines.progress import Progress
from pytest_charllm.errors import BadInput
from pytest_charllm.records import RankReport, RankRequest
from pytest_charllm.scenario.capabilities import ENGINES
from pytest_charllm.scenario.spec import COLLECTIVE_ENGINE, SCRIPT_ENGINE

Run = Callable[[RankRequest, Progress], RankReport]


def load(name: str) -> Run:
    """The `run` of an engine. Does not import torch yet. Raises `BadInput` for an engine that does not exist."""
    if name == "native":
        from pytest_charllm.engines.native import run

        return run
    if name == SCRIPT_ENGINE:
        from pytest_charllm.engines.script import run

        return run
    if name == COLLECTIVE_ENGINE:
        from pytest_charllm.engines.collective import run as run_collective

        return run_collective
    if name == "deepspeed":
        from pytest_charllm.engines.deepspeed import run as run_deepspeed

        return run_deepspeed
    raise BadInput(f"engine {name!r} is not known; known engines: {', '.join(ENGINES)}")
