"""The faults that can be injected, and how one is written: ``NAME[=VALUE][,rank=N]``."""

from __future__ import annotations

import math
import re

from pytest_charllm.errors import BadInput
from pytest_charllm.records.launch import Fault

FAULTS: dict[str, str] = {
    "slowdown": "extra work in every step; VALUE is its share of the clean step, 0.05 = 5 %",
    "host-stall": "work of the host's CPU after every step is queued; VALUE is its share of the clean step",
    "memory": "memory held through the window; VALUE is its share of what was used before",
    "leak": "Python objects kept in every step; VALUE is how many, default 100",
    "lost-overlap": "reduce DDP's gradients while the backward pass waits; takes no VALUE",
    "hang": "sleep for ever before a step of the window; VALUE is the step, default 0",
    "crash": "raise an exception before a step of the window; VALUE is the step, default 0",
    "oom": "allocate until the allocator refuses, before a step of the window; VALUE is the step, default 0",
    "early-exit": "leave with exit code 0 and no report before a step of the window; VALUE is the step, default 1",
    "nan": "multiply the loss of a step of the window by NaN; VALUE is the step, default 0",
}
"""Name -> one line for the help text."""

SLOWDOWN, HOST_STALL, MEMORY, LEAK, LOST_OVERLAP = "slowdown", "host-stall", "memory", "leak", "lost-overlap"
SHARES = (SLOWDOWN, HOST_STALL, MEMORY)
"""Faults whose value is a share, and needed."""
STEPPED = tuple(name for name in FAULTS if name not in (*SHARES, LEAK, LOST_OVERLAP))
"""Faults that come before one step of the window, whose number is the value."""
DEFAULT_STEP = {"early-exit": 1}
"""The step of a fault of `STEPPED` that names none, where it is not the first."""
LEAKED = 100
"""Objects a step, where no number is given."""

_PATTERN = re.compile(r"(?P<name>[a-z-]+)(=(?P<value>[^,=]+))?(,rank=(?P<rank>[0-9]+))?")
_LARGEST_SHARE = 10.0


def parse_fault(text: str) -> Fault:
    """Read one fault as the command line gives it, e.g. ``slowdown=0.05,rank=1``.

    Raises `BadInput` for an unknown name, a share outside (0, 10], a step or number that is not whole, and a value that
    the fault does not take.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"fault {text!r} cannot be read; write NAME[=VALUE][,rank=N], e.g. slowdown=0.05,rank=1")
    name, value = match["name"], match["value"]
    if name not in FAULTS:
        raise BadInput(f"fault {name!r} is not known; known faults: {', '.join(FAULTS)}")
    rank = None if match["rank"] is None else int(match["rank"])
    if name == LOST_OVERLAP and value is not None:
        raise BadInput(f"fault {text!r}: {name} takes no value")
    return Fault(name=name, value=_share(text, name, value) if name in SHARES else _whole(text, name, value), rank=rank)


def step_of(fault: Fault) -> int | None:
    """The step of the window that it comes before, from 0; None of a fault that concerns all steps."""
    if fault.name not in STEPPED:
        return None
    return DEFAULT_STEP.get(fault.name, 0) if fault.value is None else int(fault.value)


def refuse_absent_step(fault: Fault, steps: int) -> None:
    """Raise `BadInput` for a fault that would never happen in a window of that many steps."""
    step = step_of(fault)
    if step is not None and step >= steps:
        raise BadInput(f"fault {format_fault(fault)}: the window has only steps 0 to {steps - 1}")


def format_fault(fault: Fault) -> str:
    """The inverse of `parse_fault`."""
    value = "" if fault.value is None else f"={fault.value:g}"
    rank = "" if fault.rank is None else f",rank={fault.rank}"
    return f"{fault.name}{value}{rank}"


def describe_fault(name: str, value: float | None, achieved: float | None) -> str:
    """What was injected, in words: ``slowdown: 10.0 % requested, 10.2 % achieved``, ``hang at step 3``.

    `achieved` is the share that it came to, or the objects a step that leaked; None where no rank told.
    """
    if name == LEAK:
        return f"{name}: {LEAKED if value is None else value:g} objects a step requested" + (
            f", {achieved:g} achieved" if achieved else ""
        )
    if name == LOST_OVERLAP:
        return name if achieved is None else f"{name}: reductions took {100 * achieved:.1f} % of the rest of a step"
    if value is None:
        return name
    if name not in SHARES:
        return f"{name} at step {value:g}"
    told = "achieved not known" if achieved is None else f"{100 * achieved:.1f} % achieved"
    return f"{name}: {100 * value:.1f} % requested, {told}"


def _share(text: str, name: str, value: str | None) -> float:
    try:
        share = float(value or "")
    except ValueError:
        share = math.nan
    if not 0 < share <= _LARGEST_SHARE:
        raise BadInput(f"fault {text!r}: {name} needs a share above 0 and up to 10, e.g. {name}=0.05")
    return share


def _whole(text: str, name: str, value: str | None) -> float | None:
    if value is None:
        return None
    if not value.isdecimal() or (name == LEAK and not int(value)):
        what = (
            "a number of objects, whole and from 1" if name == LEAK else "a step of the window, a whole number from 0"
        )
        raise BadInput(f"fault {text!r}: the value is {what}")
    return float(value)
