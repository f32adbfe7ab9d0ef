"""What the launcher, too, must know of a rank that runs a script. Standard library only."""

from __future__ import annotations

from pathlib import Path

PHASE = "script"
"""From the script's first line to its last, in a rank's progress."""


def steps_file(directory: Path, rank: int) -> Path:
    """Where `mark_step` of this rank leaves its lines."""
    return directory / f"rank{rank}.steps.jsonl"
