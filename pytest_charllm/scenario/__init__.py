"""What can be run, and what follows from it on paper: key, feasibility, FLOPs, memory, traffic. Pure.

The words (`Scenario` and its parts) are here at once, the rest loads on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from pytest_charllm.scenario.spec import Layout, Options, Precision, Recompute, Scenario, Sharding, Training

_HOME = {
    "Broken": "feasibility",
    "infeasible": "feasibility",
    "canonical": "key",
    "format_key": "key",
    "parse_key": "key",
    "format_layout": "layout",
    "parse_layout": "layout",
    "ModelShape": "models",
    "parameters": "models",
    "shape": "models",
}

__all__ = ["Layout", "Options", "Precision", "Recompute", "Scenario", "Sharding", "Training", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
