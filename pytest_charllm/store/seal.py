"""Digests that make a hand-edited baseline visible, and name what was edited.

Each covers the JSON as it lies in the file, not the struct it is read into: a field added by a later version, with its
default, must not make old files look edited. A stack's digest covers its launches' digests and the head covers the
stacks', so that a launch or a stack that was removed is noticed as well.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from pytest_charllm.records import Baseline, from_json, to_json


def seal(baseline: Baseline, where: str) -> bytes:
    """The file's content with every digest in place: indented JSON, one value a line, in the order of the fields.

    Raises `BadRecord` for what could not be read back, such as a NaN.
    """
    # Through the typed reader first: an int where a float belongs would change, and its digest with it, on rewriting.
    document = msgspec.to_builtins(from_json(to_json(baseline), Baseline, where))
    for stack in document["stacks"]:
        for sample in stack["samples"]:
            sample["digest"] = _digest(sample)
        stack["digest"] = _digest(_stack(stack))
    document["digest"] = _digest(_head(document))
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def edited(data: bytes) -> str | None:
    """The first part whose digest differs, deepest first, as ``stacks[0].samples[2]``; None when untouched.

    `data` must be a well-formed baseline already.
    """
    document = msgspec.json.decode(data)
    for i, stack in enumerate(document["stacks"]):
        for k, sample in enumerate(stack["samples"]):
            if sample.get("digest") != _digest(sample):
                return f"stacks[{i}].samples[{k}]"
        if stack.get("digest") != _digest(_stack(stack)):
            return f"stacks[{i}]"
    return None if document.get("digest") == _digest(_head(document)) else "the head"


def _stack(stack: dict[str, Any]) -> dict[str, Any]:
    return {**stack, "samples": [sample.get("digest") for sample in stack["samples"]]}


def _head(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "stacks": [stack.get("digest") for stack in document["stacks"]]}


def _digest(part: dict[str, Any]) -> str:
    """The first 16 hex digits of SHA-256 over canonical JSON, without the digest itself."""
    rest = {name: value for name, value in part.items() if name != "digest"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
