"""``baselines/published``: figures of other people, which ship beside the baselines and never become one."""

from __future__ import annotations

from pathlib import Path

from pytest_charllm.records.published import Published, PublishedRow
from pytest_charllm.store.baselines import RESERVED
from pytest_charllm.store.reading import find, read_record


def published(shipped: Path) -> tuple[PublishedRow, ...]:
    """All rows below the folder of shipped baselines, none where nothing ships.

    Raises `BadRecord` for a file that cannot be trusted.
    """
    files = [read_record(path, Published) for path in find(shipped / RESERVED, "*.json")]
    return tuple(row for file in files if file is not None for row in file.rows)
