"""What one variant sets in this process, kept from the others: torch's compiler has much that is global."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any
from unittest import mock

import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config

_CONFIGS: tuple[Any, ...] = (torch._dynamo.config, torch._functorch.config, torch._inductor.config)


class CompilerSettings:
    """The compilers' settings as a variant left them: engines change some while they build."""

    def __init__(self) -> None:
        self._own: list[dict[str, Any]] | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        before = [config.get_config_copy() for config in _CONFIGS]
        if self._own is not None:
            _set(self._own)
        try:
            yield
        finally:
            self._own = [config.get_config_copy() for config in _CONFIGS]
            _set(before)


def _set(wanted: list[dict[str, Any]]) -> None:
    for config, values in zip(_CONFIGS, wanted, strict=True):
        now = config.get_config_copy()
        for name, value in values.items():
            if now[name] != value:
                setattr(config, name, value)


class OwnCode:
    """Functions that are compiled in here get bytecode of their own.

    Dynamo keeps what it has compiled with the bytecode, and takes it again wherever its guards hold. They know nothing
    of a compiler's settings: two variants that differ in those alone would both run what the first has compiled.
    """

    def __init__(self) -> None:
        self._codes: dict[CodeType, CodeType] = {}

    @contextmanager
    def in_force(self) -> Iterator[None]:
        compile_ = torch.compile

        def apart(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda function: apart(function, **options)
            return compile_(self._own(model), **options)

        with mock.patch.object(torch, "compile", apart):
            yield

    def _own(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(function, MethodType):
            return MethodType(self._own(function.__func__), function.__self__)
        if not isinstance(function, FunctionType):
            return function
        code = self._codes.setdefault(function.__code__, function.__code__.replace())
        own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        own.__kwdefaults__ = function.__kwdefaults__
        own.__qualname__, own.__module__ = function.__qualname__, function.__module__
        return own
