"""Bugs that the strict checks must notice, a file a strategy: name -> context in which the engine has the bug."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager

MUTANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {}

for _module in pkgutil.iter_modules(__path__):
    MUTANTS |= importlib.import_module(f"{__name__}.{_module.name}").MUTANTS
