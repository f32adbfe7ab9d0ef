"""What can go wrong, by kind. Every message is one line: what, where, what to do."""

from __future__ import annotations

from collections.abc import Iterable


class CharllmError(Exception):
    """Base of all errors this project raises on purpose."""


class BadInput(CharllmError):
    """The user gave something that cannot be used: an unknown model, a broken file, an impossible option."""


class BadRecord(BadInput):
    """A stored file is corrupt, truncated, of a foreign schema, or was edited by hand."""


class DeviceError(CharllmError):
    """The hardware asked for is absent, or its driver does not answer."""


class HarnessError(CharllmError):
    """Our own side failed (disk full, sampler lost, launcher bug): says nothing about the stack under test."""


class Regression(AssertionError):
    """A judged metric moved in the wrong direction, beyond tolerance, and a confirmation agreed."""


class LaunchFailed(AssertionError):
    """The training job crashed, hung or ran out of memory."""


class NoBaseline(AssertionError):
    """There is nothing comparable on record to judge against."""


class TrendBroken(AssertionError):
    """A relation between scenarios (a trend of the study) no longer holds."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean eager? `` for the middle of a message, "" where nothing known is close."""
    import difflib  # here: every pytest of the environment imports this module

    close = difflib.get_close_matches(word, list(known), n=3)
    return f"did you mean {' or '.join(close)}? " if close else ""
