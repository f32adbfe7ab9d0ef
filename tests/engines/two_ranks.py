"""Rank program of the engine tests: many requests in one pair of processes, each in a process group of its own.

``python two_ranks.py FOLDER`` with RANK set; FOLDER/cases.json is a list of [name, change, request]; writes
FOLDER/<name>.<rank>.json, the report.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines import load
from pytest_charllm.engines.native.step import Step
from pytest_charllm.records import RankRequest, to_json

STEP = "pytest_charllm.engines.native.step"


def changed(name: str) -> AbstractContextManager[object]:
    """The engine with a bug that the strict checks must notice, or with buckets so small that there are many."""
    if name == "unweighted-microbatches":
        return patch(f"{STEP}.microbatch_weight", lambda accumulation: 1.0)
    if name == "unreduced-gradients":
        return patch.object(Step, "_reducing", lambda self, last: self.model.no_sync())
    if name == "reduced-every-microbatch":
        return patch.object(Step, "_reducing", lambda self, last: nullcontext())
    if name == "small-buckets":
        small = partial(DistributedDataParallel, bucket_cap_mb=1)
        return patch("pytest_charllm.engines.native.parallelize.DistributedDataParallel", small)
    return nullcontext()


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(230, exit=True)
    rank = int(os.environ["RANK"])
    store = dist.FileStore(str(folder / "store"), 2)
    for name, change, data in json.loads((folder / "cases.json").read_text()):
        group = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=group, rank=rank, world_size=2, timeout=timedelta(seconds=60))
        request = msgspec.convert(data, RankRequest)
        with changed(change):
            report = load("native")(request, lambda phase, **details: None)
        (folder / f"{name}.{rank}.json").write_bytes(to_json(report))
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
