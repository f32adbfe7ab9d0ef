"""Rank program of the engine tests: many requests in one set of processes, each in a process group of its own.

``python rank_program.py FOLDER`` with RANK and WORLD_SIZE set; FOLDER/cases.json is a list of [name, change, request];
writes FOLDER/<name>.<rank>.json, the report.
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
import torch
import torch.distributed as dist
from mutants import MUTANTS
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.engines import load
from pytest_charllm.engines.native.reference import train_reference
from pytest_charllm.records import RankRequest, Reference, to_json
from pytest_charllm.scenario.models import ModelShape


def changed(name: str) -> AbstractContextManager[object]:
    """The engine with a bug that the strict checks must notice, or with buckets so small that there are many."""
    if name == "small-buckets":
        small = partial(DistributedDataParallel, bucket_cap_mb=1)
        return patch("pytest_charllm.engines.native.parallelize.DistributedDataParallel", small)
    return MUTANTS[name]() if name else nullcontext()


class References:
    """The same model on the same sequences is trained once for all layouts of it; never with a bug."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Reference] = {}
        self.mutated = False

    def __call__(self, request: RankRequest, shape: ModelShape, seq: int, device: torch.device) -> Reference:
        scenario = request.scenario
        key = (shape, seq, request.seed, request.diagnostic_steps, scenario.global_batch, scenario.training.microbatch)
        if key in self._made:
            return self._made[key]
        reference = train_reference(request, shape, seq, device)
        if not self.mutated:
            self._made[key] = reference
        return reference


def main(folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    faulthandler.dump_traceback_later(110 + 5 * len(cases), exit=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    references = References()
    for name, change, data in cases:
        group = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=group, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        request = msgspec.convert(data, RankRequest)
        references.mutated = bool(change)
        with changed(change), patch("pytest_charllm.engines.native.diagnostic.train_reference", references):
            report = load("native")(request, lambda phase, **details: None)
        (folder / f"{name}.{rank}.json").write_bytes(to_json(report))
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
