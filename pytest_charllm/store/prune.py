"""Disk use of old runs. Nothing is ever pruned unasked: a run may be the evidence in somebody's ticket."""

from __future__ import annotations

import shutil
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from pytest_charllm.errors import BadInput, HarnessError
from pytest_charllm.store.paths import shown
from pytest_charllm.store.run import is_locked, run_ids


@dataclass(frozen=True)
class Pruned:
    run_id: str
    size_bytes: int


def size_bytes(path: Path) -> int:
    """Bytes in all files below; a file that vanishes meanwhile counts nothing."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def prune(root: Path, keep: int, spared: Container[str] = ()) -> list[Pruned]:
    """Delete all but the newest `keep` runs; one that is still running stays, and so do `spared` ones.

    Raises `BadInput` for a negative number, `HarnessError` naming the run that cannot be deleted.
    """
    if keep < 0:
        raise BadInput(f"--keep {keep}: must be 0 or more")
    ids = run_ids(root)
    pruned = []
    for run_id in ids[: max(0, len(ids) - keep)]:
        path = root / "runs" / run_id
        if run_id in spared or is_locked(path):
            continue
        size = size_bytes(path)
        try:
            shutil.rmtree(path)
        except OSError as error:
            reason = error.strerror or error
            raise HarnessError(f"cannot delete {shown(path)}: {reason}; check its permissions") from None
        pruned.append(Pruned(run_id, size))
    return pruned
