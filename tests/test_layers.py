"""The layers of docs/architecture.md, held against the imports that are really there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_charllm"

LAYER = {
    "errors": -1,
    "hardware": 0, "step": 0,
    "scenario": 1,
    "records": 2,
    "devices": 3, "engines": 3, "measure": 3, "judge": 3, "store": 3,
    "telemetry": 4,
    "launch": 5,
    "campaign": 6, "report": 6,
    "plugin": 7, "commands": 7,
}  # fmt: skip

PURE = ("errors", "hardware", "scenario", "records", "measure", "judge")
BARRED_FROM_PURE = {"torch", "pynvml", "amdsmi", "pytest", "psutil", "deepspeed"}


def imports(path: Path) -> Iterator[str]:
    """Every module name imported anywhere in the file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(package: str) -> list[Path]:
    single = PACKAGE / f"{package}.py"
    return [single] if single.exists() else sorted((PACKAGE / package).rglob("*.py"))


def test_every_package_has_a_layer() -> None:
    """A new package without a place in the plan is a wall that nobody drew."""
    found = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found - {"__init__"} <= set(LAYER)


@pytest.mark.parametrize("package", [name for name in LAYER if files(name)])
def test_imports_point_down(package: str) -> None:
    """Upward or sideways imports turn the one-way flow into a knot."""
    wrong = []
    for path in files(package):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "pytest_charllm" or len(parts) < 2 or parts[1] not in LAYER or parts[1] == package:
                continue
            if LAYER[parts[1]] >= LAYER[package]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_import_no_torch_driver_or_pytest(package: str) -> None:
    """The judge and the arithmetic must run anywhere, in any process, without a GPU stack."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files(package)
        for name in imports(path)
        if name.split(".")[0] in BARRED_FROM_PURE
    ]
    assert not wrong


def test_plugin_import_is_light() -> None:
    """The plugin is loaded in every pytest of its environment: it may pull in none of what only a run needs."""
    heavy = ("torch", "pynvml", "deepspeed", "numpy", "tabulate", "psutil", "msgspec")
    code = f"import sys, pytest; import pytest_charllm.plugin; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_files_are_read_in_one_sitting() -> None:
    """About 400 lines: past that there is a second thing in the file that wants a place of its own."""
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 420
    }
    assert not long
