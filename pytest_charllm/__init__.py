"""Characterize distributed LLM training and gate it against stored baselines, as pytest tests.

The public names below load on first use: ``import pytest_charllm`` itself costs next to nothing, because the plugin
is loaded in every pytest session of its environment.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as type checkers read it; importing `typing` would find a namesake beside the tests
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_HOME = {
    "scenarios": "pytest_charllm.plugin.parametrize",
    "Rows": "pytest_charllm.plugin.parametrize",
    "Scenario": "pytest_charllm.scenario",
    "Layout": "pytest_charllm.scenario",
    "Script": "pytest_charllm.scenario",
    "Training": "pytest_charllm.scenario",
    "TrendBroken": "pytest_charllm.errors",
}

__all__ = ["Layout", "Rows", "Scenario", "Script", "Training", "TrendBroken", "__version__", "scenarios"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
