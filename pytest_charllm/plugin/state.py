"""What the plugin knows about one pytest session. Kept in the config's stash, never in a global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_charllm.hardware import Machine
    from pytest_charllm.plugin.options import Options
    from pytest_charllm.plugin.suite import Suite

FIXTURES = ("measured", "charllm")


@dataclass
class State:
    """`error`: why the items of ours cannot be used at all, found while collecting and raised once that is over.

    Raised in the middle of collection it would read as one broken file and end with pytest's code for that.
    """

    options: Options
    machine: Machine | None = None
    error: str | None = None
    suite: Suite | None = None


STATE = pytest.StashKey[State]()


def is_ours(item: pytest.Item) -> bool:
    """Whether the item takes one of our fixtures, directly or through others."""
    names = getattr(item, "fixturenames", ())
    return any(fixture in names for fixture in FIXTURES)
