"""`docs/paper.md` against the suites: what it names is there, and what is there it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text()
SUITES = ("parallelism", "optimizations", "microbatch", "scaling", "moe", "long_context", "lora", "precision")


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / "suites" / file).read_text())
    return {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_test_it_names_exists() -> None:
    """A finding whose test was renamed reads as tested, and is not."""
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 10
    for file, function in named:
        assert function in functions(file), f"{file}::{function}"


def test_every_file_of_its_commands_exists() -> None:
    """A command that is copied from the page must find something."""
    files = set(re.findall(r"(?<!tests/)(suites/\w+\.py)", PAGE))
    assert len(files) > 3
    assert all((ROOT / file).exists() for file in files), files


def test_every_trend_is_on_the_page() -> None:
    """A trend nobody can look up is a red line nobody understands. Tests that compare take two fixtures."""
    for suite in SUITES:
        file = f"test_{suite}.py"
        for name, node in functions(file).items():
            if len(node.args.args) > 1:
                assert f"{file}::{name}`" in PAGE, f"{file}::{name}"
