"""``--charllm-simulate``: which machine it makes, and what it refuses. A launch on it is in tests/launch."""

from __future__ import annotations

import pytest

ROW = """
from pytest_charllm import Rows, scenarios

@scenarios("tiny-gpt.dp2.mb2.fp32.eager", Rows("llama3-1b", {"*:1x2": "dp2"}), Rows("tiny-llama", {"cpu:1x2": "dp2"}))
def test_it(measured):
    measured.check()
"""


@pytest.mark.parametrize(
    ("arguments", "machine", "rows"),
    [
        (("--gpu=mi250",), "mi250 1x2, simulated", ["tiny-gpt*", "tiny-llama*"]),
        (("--charllm-assume=h200:1x8",), "h200-sxm 1x8, simulated", ["tiny-gpt*"]),
    ],
)
def test_the_machine_is_said_to_be_simulated(
    pytester: pytest.Pytester, arguments: tuple[str, ...], machine: str, rows: list[str]
) -> None:
    """A run whose header looks like a real card's would be read as one. What trains is a CPU, so it gets a CPU's rows:
    a billion parameters would keep it busy for hours."""
    pytester.makepyfile(ROW)
    result = pytester.runpytest("--charllm-simulate", "--charllm-plan", *arguments)
    assert result.ret == 0
    result.stdout.fnmatch_lines([*(f"{row}feasible*" for row in rows), f"*on {machine}: {len(rows)} feasible, about *"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "*--charllm-simulate: name the one GPU to simulate, for example --gpu=h200"),
        (("--gpu=b200",), "*no simulation of b200-sxm: there are h200-sxm, h100-sxm, mi250, mi300x"),
        (("--gpu=cpu",), "*no simulation of cpu: *"),
        (("--charllm-assume=h200:2x8",), "*--charllm-assume=h200:2x8: a simulation is of one node"),
    ],
)
def test_what_cannot_be_simulated_is_a_usage_error(
    pytester: pytest.Pytester, arguments: tuple[str, ...], said: str
) -> None:
    """One line, and never another machine than the one meant."""
    pytester.makepyfile(ROW)
    result = pytester.runpytest("--charllm-simulate", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
