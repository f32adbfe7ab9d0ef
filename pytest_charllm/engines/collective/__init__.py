"""The engine of collectives: one operation between the ranks, at every size, and nothing beside it."""

from __future__ import annotations

import time

from pytest_charllm.engines.progress import Progress
from pytest_charllm.records import RankReport, RankRequest


def run(request: RankRequest, progress: Progress) -> RankReport:
    """Sweep the scenario's messages inside one rank and report their times.

    Raises `BadInput` for what this engine cannot do, and whatever torch raises. As of the native engine, the process
    group is left standing.
    """
    started = time.perf_counter()
    from pytest_charllm.engines.collective import entry

    return entry.run(request, progress, import_s=time.perf_counter() - started)
