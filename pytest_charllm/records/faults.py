"""The faults that can be injected, and how one is written: ``NAME[=VALUE][,rank=N]``."""

from __future__ import annotations

import math
import re

from pytest_charllm.errors import BadInput
from pytest_charllm.records.launch import Fault

FAULTS: dict[str, str] = {
    "slowdown": "extra work in every step; VALUE is its share of the clean step, 0.05 = 5 %",
    "hang": "sleep for ever before a step of the window; VALUE is the step, default 0",
    "crash": "raise an exception before a step of the window; VALUE is the step, default 0",
    "oom": "allocate until the allocator refuses, before a step of the window; VALUE is the step, default 0",
    "early-exit": "leave with exit code 0 and no report before a step of the window; VALUE is the step, default 1",
    "nan": "multiply the loss of a step of the window by NaN; VALUE is the step, default 0",
}
"""Name -> one line for the help text."""

SLOWDOWN = "slowdown"
"""The one fault whose value is a share; that of every other is a step of the window."""

_PATTERN = re.compile(r"(?P<name>[a-z-]+)(=(?P<value>[^,=]+))?(,rank=(?P<rank>[0-9]+))?")
_LARGEST_SLOWDOWN = 10.0


def parse_fault(text: str) -> Fault:
    """Read one fault as the command line gives it, e.g. ``slowdown=0.05,rank=1``.

    Raises `BadInput` for an unknown name, a share outside (0, 10] and a step that is no whole number.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"fault {text!r} cannot be read; write NAME[=VALUE][,rank=N], e.g. slowdown=0.05,rank=1")
    name, value = match["name"], match["value"]
    if name not in FAULTS:
        raise BadInput(f"fault {name!r} is not known; known faults: {', '.join(FAULTS)}")
    rank = None if match["rank"] is None else int(match["rank"])
    return Fault(name=name, value=_share(text, value) if name == SLOWDOWN else _step(text, value), rank=rank)


def format_fault(fault: Fault) -> str:
    """The inverse of `parse_fault`."""
    value = "" if fault.value is None else f"={fault.value:g}"
    rank = "" if fault.rank is None else f",rank={fault.rank}"
    return f"{fault.name}{value}{rank}"


def describe_fault(name: str, value: float | None, achieved: float | None) -> str:
    """What was injected, in words: ``slowdown: 10.0 % requested, 10.2 % achieved``, ``hang at step 3``.

    `achieved` is the share that a slowdown came to, None where no rank told.
    """
    if value is None:
        return name
    if name != SLOWDOWN:
        return f"{name} at step {value:g}"
    told = "achieved not known" if achieved is None else f"{100 * achieved:.1f} % achieved"
    return f"{name}: {100 * value:.1f} % requested, {told}"


def _share(text: str, value: str | None) -> float:
    try:
        share = float(value or "")
    except ValueError:
        share = math.nan
    if not 0 < share <= _LARGEST_SLOWDOWN:
        raise BadInput(f"fault {text!r}: slowdown needs a share of the step above 0 and up to 10, e.g. slowdown=0.05")
    return share


def _step(text: str, value: str | None) -> float | None:
    if value is None:
        return None
    if not value.isdecimal():
        raise BadInput(f"fault {text!r}: the value is a step of the window, a whole number from 0")
    return float(value)
