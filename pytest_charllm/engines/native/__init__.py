"""The native engine: GPT-3, Llama and Mixtral decoders trained on torch's own primitives."""

from __future__ import annotations

import time

from pytest_charllm.engines.progress import Progress
from pytest_charllm.records import RankReport, RankRequest


def run(request: RankRequest, progress: Progress) -> RankReport:
    """Train as asked inside one rank of a torchrun job and report.

    Raises `BadInput` for what this engine cannot do, `NoCompiler`, `NonFinite`, `OutOfMemory`, and whatever torch
    raises. On success the process group is left standing: end the process by `os._exit` (see `world.py`).
    """
    started = time.perf_counter()
    from pytest_charllm.engines.native import entry

    return entry.run(request, progress, import_s=time.perf_counter() - started)
