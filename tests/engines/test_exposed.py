"""benchmarks/two_gpus/exposed.py without a GPU: what is held against what, and the table."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_charllm.errors import BadInput

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "two_gpus"


@pytest.fixture(scope="module")
def exposed() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import exposed

        yield exposed


def test_a_scenario_is_held_against_itself_without_overlap(exposed: ModuleType) -> None:
    assert exposed.pair("llama3-1b.4L.dp2.mb1") == ("llama3-1b.4L.dp2.mb1", "llama3-1b.4L.dp2.mb1.no-overlap")


@pytest.mark.parametrize("key", ["llama3-1b.4L.dp2.mb1.no-overlap", "llama3-1b.4L.dp4.mb1", "llama3-1b.4L.mb1"])
def test_what_has_no_overlap_between_two_is_refused(exposed: ModuleType, key: str) -> None:
    """With four ranks on two GPUs NCCL ends in an error of its own, minutes later."""
    with pytest.raises(ValueError, match="give scenarios of two ranks with overlap"):
        exposed.pair(key)


def test_a_key_that_cannot_be_read_says_why(exposed: ModuleType) -> None:
    with pytest.raises(BadInput, match="token 'foo'"):
        exposed.pair("llama3-1b.dp2.foo")


def test_rounds_are_joined_by_their_medians(exposed: ModuleType) -> None:
    """A round that was cut short has no number in the table, and none of the others is lost for it."""
    whole = {
        "compute_time": 26.0,
        "communication_time": 8.0,
        "exposed_communication": 2.0,
        "host_gap": 1.0,
        "step": 29.0,
    }
    slower = whole | {"exposed_communication": 3.0, "step": 31.0}
    printed = exposed.table(["on", "off"], {"on": [whole, slower, {}], "off": [{}]})
    (row,) = printed.splitlines()[2:]
    assert row.split() == ["on", "26.0", "8.0", "2.5", "1.0", "30.0", "69", "%", "2"]
