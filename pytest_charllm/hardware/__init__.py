"""GPU models as data, and the machine that was found. Imports nothing of the project but errors.

The catalogue loads on first use, so importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import Any

from pytest_charllm.hardware.machine import Device, Machine

_CATALOGUE = ("CATALOGUE", "Hardware", "default_variant", "match_name", "parse_assume", "resolve")

__all__ = ["Device", "Machine", *_CATALOGUE]


def __getattr__(name: str) -> Any:
    if name not in _CATALOGUE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_charllm.hardware import catalogue

    return getattr(catalogue, name)
