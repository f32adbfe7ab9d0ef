"""The key of a scripted scenario: ``script-pretrain_gpt.tp2dp4.args-1f9c02ab``.

    key = "script-" name ["." layout] [".args-" digest]

The name is the script's own (`Script.name`, else its file without folder and ending). The digest stands for the
arguments, in their order: other arguments are other work. What the script does with them is the code under test, so
neither its path nor its content is in the key, and neither is what only says how it is measured.

Arguments cannot be read back from a digest, so there is no `parse_key` of such a key. A stored launch holds its whole
scenario beside the key.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import PurePath

import msgspec

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.layout import format_layout
from pytest_charllm.scenario.spec import Layout, Scenario, Script

PREFIX = "script-"
"""No model's name begins like this."""


def script_key(script: Script, layout: Layout) -> str:
    """Raises `BadInput` where nothing is left of its name, or the layout has no text."""
    tokens = [PREFIX + script_name(script)]
    if layout != Layout():
        tokens.append(format_layout(layout))
    if script.args:
        digest = hashlib.sha256(msgspec.json.encode(tuple(script.args))).hexdigest()[:8]
        tokens.append(f"args-{digest}")
    return ".".join(tokens)


def refuse_namesake(one: Scenario, other: Scenario) -> None:
    """Raise `BadInput` where two scripts of one key would share a measurement: a key knows their name, not their file.

    Training of one key is one work, however it is spelled.
    """
    if isinstance(one.work, Script) and one.work != other.work:
        raise BadInput(f"two different scripts have the key {one.key}: give one of them a name, Script(..., name=...)")


def refuse_times(script: Script) -> None:
    """Raise `BadInput` for limits that no launch could keep."""
    for name in ("silence_s", "deadline_s"):
        seconds = getattr(script, name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise BadInput(f"Script({script.path!r}): {name} is {seconds!r}; give seconds, above 0 and finite")


def script_name(script: Script) -> str:
    """Its name in lower case, every run of characters that a key does not have as one dash."""
    own = script.path.rpartition(".")[2] if script.module else PurePath(script.path).stem
    name = re.sub(r"[^a-z0-9_]+", "-", (script.name or own).lower()).strip("-")
    if not name:
        raise BadInput(f"Script({script.path!r}): give it a name of letters and digits, name=...")
    return name
