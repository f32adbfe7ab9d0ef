"""A variant: an engine, and levers that are moved while it is built and whenever it steps.

    native                                                    as it ships
    torchtitan                                                the peer
    native:NAME=value                                         an environment variable
    native:package.module:NAME=value                          an attribute of a module, NAME may be dotted
    native:options.NAME=value                                 an option of the scenario

Several levers are separated by commas. Values are Python literals where they can be read as one, else text (always
text for the environment). A lever that does not exist is refused: moving nothing would read like a lever without
effect. A name that a module has imported from another must be moved where it is used.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any
from unittest import mock

import msgspec

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import Scenario

ENGINES = ("native", "torchtitan")
_LEVER = re.compile(r"(?:(?P<module>[\w.]+):)?(?P<name>[\w.]+)=(?P<value>.*)")
_OPTION = "options."


class Lever(msgspec.Struct, frozen=True):
    """`module` None: an option of the scenario where `name` says so, else an environment variable."""

    module: str | None
    name: str
    text: str

    @property
    def option(self) -> str | None:
        return self.name.removeprefix(_OPTION) if self.module is None and self.name.startswith(_OPTION) else None

    @property
    def value(self) -> Any:
        try:
            return ast.literal_eval(self.text)
        except (ValueError, SyntaxError):
            return self.text


class Variant(msgspec.Struct, frozen=True):
    """`name` is the text that it was read from."""

    name: str
    engine: str
    levers: tuple[Lever, ...]

    def scenario(self, plain: Scenario) -> Scenario:
        """`plain` with this variant's options. Raises `BadInput` for one that does not exist, or a wrong value."""
        options = msgspec.to_builtins(plain.options)
        for lever in self.levers:
            if lever.option is not None:
                options[lever.option] = lever.value
        try:
            changed = msgspec.convert(options, type(plain.options))
        except msgspec.ValidationError as error:
            raise BadInput(f"variant {self.name}: {error}") from None
        return msgspec.structs.replace(plain, options=changed)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Its levers outside of the scenario are moved in here. Raises `BadInput` for an attribute that is missing."""
        with ExitStack() as stack:
            for lever in self.levers:
                if lever.module is not None:
                    owner, attribute = self._owner(lever)
                    stack.enter_context(mock.patch.object(owner, attribute, lever.value))
                elif lever.option is None:
                    stack.enter_context(mock.patch.dict(os.environ, {lever.name: lever.text}))
            yield

    def _owner(self, lever: Lever) -> tuple[Any, str]:
        assert lever.module is not None
        *path, attribute = lever.name.split(".")
        try:
            owner = reduce(getattr, path, importlib.import_module(lever.module))
            getattr(owner, attribute)
        except (ImportError, AttributeError) as error:
            raise BadInput(f"variant {self.name}: {error}") from None
        return owner, attribute


def parse(text: str) -> Variant:
    """Raises `BadInput` for an engine that is not known and for a lever that cannot be read."""
    engine, _, rest = text.partition(":")
    if engine not in ENGINES:
        raise BadInput(f"variant {text!r}: engine {engine!r} is none of {', '.join(ENGINES)}")
    levers = []
    for part in rest.split(",") if rest else []:
        match = _LEVER.fullmatch(part)
        if match is None:
            raise BadInput(f"variant {text!r}: {part!r} is no lever: NAME=value or package.module:NAME=value")
        levers.append(Lever(match["module"], match["name"], match["value"]))
    return Variant(text, engine, tuple(levers))
