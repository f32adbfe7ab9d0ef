"""The engine of scripts: runs somebody's own training program in this rank and reports what it left."""

from __future__ import annotations

from pytest_charllm.engines.progress import Progress
from pytest_charllm.records import RankReport, RankRequest


def run(request: RankRequest, progress: Progress) -> RankReport:
    """Run the script to its end, then read its marks or its log. Imports no torch of its own.

    Raises `BadInput` for a script that is not there, `ScriptExited`, `NonFinite` where its log has such a loss, and
    whatever the script raises.
    """
    from pytest_charllm.engines.script import entry

    return entry.run(request, progress)
