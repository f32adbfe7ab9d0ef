"""How metrics and their changes are put into words, the same in every reason and because-line."""

from __future__ import annotations

from pytest_charllm.judge.tolerances import GATES
from pytest_charllm.records import METRICS


def name(metric: str) -> str:
    """``throughput``, ``energy per token``, ``Gate A``."""
    return GATES.get(metric, metric.replace("_", " "))


def moved(metric: str, change: float) -> str:
    """A change with its sign: ``-6.1 %``, ``+5.2 degC``, or ``+3.0 points`` of a share."""
    kind = METRICS[metric]
    scaled = round(100 * change if kind.relative or kind.unit == "share" else change, 1) + 0.0  # -0.0 is none
    unit = "%" if kind.relative else "points" if kind.unit == "share" else kind.unit
    return f"{scaled:+.1f} {unit}"


def width(metric: str, size: float) -> str:
    """A size without sign, for tolerances: ``1.5 %``."""
    return moved(metric, size).removeprefix("+")


def amount(metric: str, value: float) -> str:
    """An absolute value: ``12.0 %`` of a share, else with its unit."""
    kind = METRICS[metric]
    return f"{100 * value:.1f} %" if kind.unit == "share" else f"{value:.4g} {kind.unit}"
