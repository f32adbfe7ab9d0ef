"""The common base of stored and exchanged records, and their one way in and out of JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pytest_charllm.errors import BadRecord

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
"""Version of every stored record. A file of another version is refused by name, never guessed at."""

MEASURING = 1
"""Version of the measuring code. Raised when the same launch would be reduced to other numbers than before."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An immutable value that is written to a file or sent between processes.

    Subclasses say `kw_only=True` themselves, since msgspec does not inherit it, and `frozen=True` for type checkers.
    """


T = TypeVar("T", bound=msgspec.Struct)


def timestamp(moment: datetime) -> str:
    """An instant as records keep it, for people and for sorting: UTC, ISO 8601, whole seconds."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def to_json(record: msgspec.Struct) -> bytes:
    """One line of JSON. NaN and infinity become null, which the typed reader refuses where a number is required."""
    return msgspec.json.encode(record)


def to_pretty_json(record: msgspec.Struct) -> bytes:
    """Indented JSON with a final newline: what is committed and reviewed as a diff."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def from_json(data: bytes, kind: type[T], where: str | Path) -> T:
    """Decode one record strictly.

    Raises `BadRecord` with the file, the field and the reason: foreign schema first, since everything else follows.
    """
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecord(f"{where}: not valid JSON ({error}); restore it or delete it") from None
    if isinstance(head, dict) and "schema" in kind.__struct_fields__ and head.get("schema") != SCHEMA:
        found = head.get("schema", "none")
        raise BadRecord(f"{where}: field schema is {found}, this version reads {SCHEMA}; record it again or update")
    try:
        return msgspec.convert(head, kind)
    except msgspec.ValidationError as error:
        raise BadRecord(f"{where}: {error}; restore it or delete it") from None
