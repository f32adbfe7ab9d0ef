"""The file that a sampler writes: whole lines, in a file that no one else has."""

from __future__ import annotations

import os

import msgspec

from pytest_charllm.errors import HarnessError
from pytest_charllm.records.telemetry import Line, SampleLine


class TraceFile:
    """Appends lines. Raises `HarnessError` when it cannot."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise HarnessError(f"telemetry file {path} cannot be created: {error.strerror}") from None
        self._path = path
        self._pending = bytearray()
        self.size = 0
        self.samples = 0

    def add(self, line: Line) -> None:
        encoded = msgspec.json.encode(line) + b"\n"
        self._pending += encoded
        self.size += len(encoded)
        self.samples += isinstance(line, SampleLine)

    def flush(self) -> None:
        while self._pending:
            try:
                written = os.write(self._fd, self._pending)
            except OSError as error:
                raise HarnessError(f"telemetry file {self._path} cannot be written: {error.strerror}") from None
            del self._pending[:written]

    def close(self) -> None:
        self.flush()
        os.close(self._fd)
