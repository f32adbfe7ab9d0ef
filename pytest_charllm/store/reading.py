"""The one way a file of ours is read: what cannot be read is named, like what cannot be trusted."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TypeVar

from pytest_charllm.errors import BadInput, BadRecord
from pytest_charllm.records import Record, from_json
from pytest_charllm.store.paths import shown

R = TypeVar("R", bound=Record)


def find(folder: Path, pattern: str) -> list[Path]:
    """What matches below `folder`, sorted; nothing where there is no such folder. Raises `BadInput` naming it."""
    try:
        return sorted(folder.glob(pattern))
    except OSError as error:
        raise BadInput(f"{shown(folder)}: cannot be read: {error.strerror}; check its permissions") from None


def mode_of(path: Path) -> int:
    """Its type and permissions; 0 where there is nothing. Raises `OSError` where it cannot be looked at."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def is_folder(path: Path) -> bool:
    """False where there is nothing. Raises `BadInput` naming what is no folder, or cannot be looked at."""
    try:
        mode = mode_of(path)
    except OSError as error:
        raise BadInput(f"{shown(path)}: cannot be read: {error.strerror}; check its permissions") from None
    if mode and not stat.S_ISDIR(mode):
        raise BadInput(f"{shown(path)} is not a directory")
    return bool(mode)


def read_bytes(path: Path) -> bytes | None:
    """None when there is no such file. Raises `BadRecord` naming a file that is there and cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise BadRecord(f"{shown(path)}: there is a file where a folder should be; move it away") from None
    except OSError as error:
        raise BadRecord(f"{shown(path)}: cannot be read: {error.strerror}; check its permissions") from None


def read_record(path: Path, kind: type[R]) -> R | None:
    """None when there is no such file. Raises `BadRecord` naming file and field of one that cannot be trusted."""
    data = read_bytes(path)
    return from_json(data, kind, shown(path)) if data is not None else None
