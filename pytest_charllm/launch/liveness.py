"""Signs of life of a script, which knows nothing of us: its files grow while it marks steps or prints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pytest_charllm.engines.script.names import PHASE, steps_file
from pytest_charllm.launch.exchange import RankProgress
from pytest_charllm.launch.names import LOGS

_LOOK_S = 0.5
_MARK = b'"line":"mark"'


@dataclass
class _Seen:
    size: int = 0
    """Bytes of marks and output."""
    at_s: float = 0.0
    """When they had last grown."""
    read: int = 0
    """Bytes of marks that are counted."""
    marks: int = 0


class Liveness:
    """What each rank of a script did last, as far as that can be seen from outside."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[int, _Seen] = {}
        self._looked_s = 0.0

    def refresh(self, told: Mapping[int, RankProgress]) -> dict[int, RankProgress]:
        """The same progress, where a rank is in its script as of the last growth, with its marks so far as steps."""
        running = [rank for rank, progress in told.items() if progress.phase == PHASE]
        now_s = time.monotonic()
        if running and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            for rank in running:
                self._look(rank, now_s)
        return {rank: self._as_seen(rank, progress) if rank in running else progress for rank, progress in told.items()}

    def _as_seen(self, rank: int, progress: RankProgress) -> RankProgress:
        seen = self._seen.get(rank, _Seen())
        return msgspec.structs.replace(progress, mono_s=max(progress.mono_s, seen.at_s), step=seen.marks or None)

    def _look(self, rank: int, now_s: float) -> None:
        seen = self._seen.setdefault(rank, _Seen())
        marks = steps_file(self._directory, rank)
        outputs = (self._directory / LOGS).glob(f"*/attempt_0/{rank}/std*.log")
        size = sum(path.stat().st_size for path in (marks, *outputs) if path.exists())
        if size == seen.size:
            return
        seen.size, seen.at_s = size, now_s
        if marks.exists():
            with open(marks, "rb") as file:
                file.seek(seen.read)
                lines, newline, _ = file.read().rpartition(b"\n")
            seen.read += len(lines) + len(newline)
            seen.marks += lines.count(_MARK)
