"""Files of published figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_charllm.errors import BadRecord
from pytest_charllm.store.published import published


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """Half a row is no row, and none where the file was: it must say so."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "x.json").write_text('{"schema": 1, "rows": [{"model": "llama3-8b"}]}')
    with pytest.raises(BadRecord, match=r"published/x\.json"):
        published(tmp_path)
    assert published(tmp_path / "nowhere") == ()
