"""How metrics and their changes are put into words, the same in every reason and because-line."""

from __future__ import annotations

from pytest_charllm.judge.tolerances import GATES
from pytest_charllm.records import METRICS


def name(metric: str) -> str:
    """``throughput``, ``energy per token``, ``Gate A``."""
    return GATES.get(metric, metric.replace("_", " "))


_ABSOLUTE = {"share": (100.0, 1, " points"), "s": (1e3, 1, " ms"), "wall/CPU": (1.0, 2, "")}
"""Of differences that need it: scale, digits after the point, unit."""


def moved(metric: str, change: float) -> str:
    """A change with its sign: ``-6.1 %``; or of a difference ``+5.2 degC``, ``+3.0 points`` of a share, ``-0.03``."""
    kind = METRICS[metric]
    scale, digits, unit = (100.0, 1, " %") if kind.relative else _ABSOLUTE.get(kind.unit, (1.0, 1, f" {kind.unit}"))
    return f"{round(scale * change, digits) + 0.0:+.{digits}f}{unit}"  # -0.0 is none


def width(metric: str, size: float) -> str:
    """A size without sign, for tolerances: ``1.5 %``."""
    return moved(metric, size).removeprefix("+")


def amount(metric: str, value: float) -> str:
    """An absolute value: ``12.0 %`` of a share, else with its unit."""
    kind = METRICS[metric]
    return f"{100 * value:.1f} %" if kind.unit == "share" else f"{value:.4g} {kind.unit}"
