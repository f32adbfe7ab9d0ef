"""Somebody's program run as Python runs it, in this process, so that signals, stacks and exit stay the rank's."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_charllm.errors import BadInput, CharllmError
from pytest_charllm.scenario import Script

OUT = "{out}"
DIGEST = 12
"""Hex digits of a SHA-256: enough to tell versions of one file apart, and to read them in a line."""


class ScriptExited(CharllmError):
    """The script ended itself with another exit code than 0. Why, it has printed: `last_words` are its own."""

    kind = "exception"
    last_words = True


def run_program(script: Script, args: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Run it as ``__main__`` with these arguments and additions to the environment, until the interpreter would end.

    Returns the digest of its file as it was when it started, None of a module that has no source file.
    Its threads are joined and its exit functions called. ``sys.exit(0)`` is a regular end; other codes raise
    `ScriptExited`, which is raised from the script's own line. Raises `BadInput` where there is no such file or module.
    """
    path = os.path.abspath(script.path)
    if not script.module and not Path(path).is_file():
        raise BadInput(f"script {path} does not exist; a relative path starts where pytest was called")
    # As the interpreter would, of a module and of a file.
    sys.path.insert(0, os.getcwd() if script.module else os.path.dirname(path))
    if script.module and not _is_module(script.path):
        raise BadInput(
            f"module {script.path!r} does not exist; it is looked for where pytest was called, then as any other"
        )
    digest = _digest(_file_of_module(script.path) if script.module else Path(path))
    # Else a launch within the script would take itself for part of this one.
    for name in [name for name in os.environ if name.startswith("CHARLLM_")]:
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = [script.path if script.module else path, *args]
    try:
        if script.module:
            runpy.run_module(script.path, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            what = f"with {ended.code}" if isinstance(ended.code, int) else f"saying {ended.code}"
            raise ScriptExited(f"the script exited {what}").with_traceback(ended.__traceback__) from None
    # What the interpreter does when it ends, in its order. The rank leaves by os._exit, which would skip both: threads
    # that still train, and exit functions that flush a log or close a tracker.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return digest


def _file_of_module(name: str) -> Path | None:
    """The source that ``python -m`` runs: of a package its ``__main__``, found without importing it before its time."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        return Path(spec.origin) if spec.has_location and spec.origin is not None else None
    return next((Path(folder, "__main__.py") for folder in spec.submodule_search_locations), None)


def _digest(file: Path | None) -> str | None:
    if file is None or not file.is_file():
        return None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGEST]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:  # the package that it would be in; what that one lacks itself is its own fault
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return False
        raise


def expand(text: str, out: Path) -> str:
    """``{out}`` as the folder `out`, which is made where it is asked for."""
    if OUT not in text:
        return text
    out.mkdir(exist_ok=True)
    return text.replace(OUT, str(out))
