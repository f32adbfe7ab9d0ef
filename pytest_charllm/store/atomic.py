"""The one way a file of ours comes into being: whole, or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pytest_charllm.errors import HarnessError
from pytest_charllm.store.paths import shown


def write_atomically(path: Path, data: bytes, option: str = "--charllm-dir") -> None:
    """Replace `path` by `data`; a reader, a crash or a power cut sees the old file or the new one, nothing between.

    Missing folders are made. Raises `HarnessError` when the file cannot be written; the old one is then untouched.
    `option` is the one that would put it elsewhere.
    """
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.parent / f".{path.name[:200]}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror or error
        raise HarnessError(f"{shown(path)} not writable: {reason}; choose another folder with {option}") from None


def _sync_folder(folder: Path) -> None:
    """The rename itself must survive a power cut. Some network file systems cannot: the data is already safe there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
