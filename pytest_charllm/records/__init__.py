"""Every struct that is stored or exchanged. No I/O.

A name of this package loads them all on first use. Whoever needs one module alone, as the sampler does, which starts
with every launch, imports that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_charllm.records.every import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("pytest_charllm.records.every"), name)
