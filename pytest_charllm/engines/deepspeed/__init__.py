"""DeepSpeed as an engine: ZeRO 0 to 3, its pipeline, its mixture layers; on the models and data of the native engine.

Its process groups are global to a process, so one process trains one scenario.
"""

from __future__ import annotations

import time

from pytest_charllm.engines.progress import Progress
from pytest_charllm.records import RankReport, RankRequest


def run(request: RankRequest, progress: Progress) -> RankReport:
    """Train as asked inside one rank of a torchrun job and report, as `engines.native.run` does and with its errors.

    Raises `NotUsable` where DeepSpeed is not installed or does not work beside this torch.
    """
    started = time.perf_counter()
    from pytest_charllm.engines.deepspeed import installation

    installation.load(request.device)
    from pytest_charllm.engines.deepspeed.step import Step
    from pytest_charllm.engines.native import entry

    return entry.run(request, progress, import_s=time.perf_counter() - started, make_step=Step)
