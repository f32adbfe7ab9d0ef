"""The examples are what people copy: each of them must at least be collected, and be what its page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*/train.py"))
PAGE = (EXAMPLES / "README.md").read_text()


def test_page_and_folders_agree() -> None:
    """An example that the page leaves out is found by nobody, a command of one that is gone by everybody."""
    folders = {script.parent.name for script in SCRIPTS}
    assert set(re.findall(r"^\| \[(\w+)\]", PAGE, re.MULTILINE)) == folders
    assert set(re.findall(r"^\$ pytest examples/(\w+)", PAGE, re.MULTILINE)) == folders


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.parent.name for script in SCRIPTS])
def test_every_script_marks_its_steps(script: Path) -> None:
    """The one line that an example is there to show."""
    calls = [node.func.id for node in ast.walk(ast.parse(script.read_text()))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
    assert calls.count("mark_step") == 1


def test_they_are_planned_with_the_keys_of_the_page(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite of an example that no longer collects, or whose scenario has another name than the page prints."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_inprocess(
        "-p", "charllm", "-p", "no:cacheprovider", f"--rootdir={EXAMPLES.parent}", str(EXAMPLES / "ddp"),
        "--charllm-assume=cpu:1x2", "--charllm-plan",
    )  # fmt: skip
    (key,) = set(re.findall(r"^(script-ddp\S*)", PAGE, re.MULTILINE))
    result.stdout.fnmatch_lines([f"{key} * feasible"])
