"""What ends a rank for a reason of its own. `kind` is what the launcher files the failure under."""

from __future__ import annotations

from pytest_charllm.errors import BadInput, CharllmError


class NonFinite(CharllmError):
    """A loss or gradient norm is NaN or infinite."""

    kind = "not-finite"


class OutOfMemory(CharllmError):
    """The device, or on a CPU the process, could not get the memory it asked for."""

    kind = "out-of-memory"


class NoCompiler(BadInput):
    """torch.compile was asked for where there is no compiler to serve it."""

    kind = "environment"


class MissingPackage(BadInput):
    """A scenario needs a package that is not installed, or that does not work here."""

    kind = "environment"
