"""Paths as people read and copy them."""

from __future__ import annotations

from pathlib import Path


def shown(path: Path) -> str:
    """Relative to the working directory when inside it, else as it is."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # not inside, or the working directory is gone
        return str(path)
