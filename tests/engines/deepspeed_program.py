"""Rank program of the DeepSpeed tests: many requests in one set of processes and one process group, which DeepSpeed
keeps for good.

``python deepspeed_program.py FOLDER`` with RANK and WORLD_SIZE set; FOLDER/cases.json is a list of [name, bug,
request]; writes FOLDER/<name>.<rank>.json, the report.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch.distributed as dist

from pytest_charllm.engines import load
from pytest_charllm.engines.deepspeed import installation
from pytest_charllm.records import RankRequest, to_json

installation.load("cpu")

from deepspeed.runtime.zero import partitioned_param_coordinator, stage3, stage_1_and_2  # noqa: E402


@contextmanager
def parameters_counted_at_every_gradient() -> Iterator[None]:
    """DeepSpeed#7885: each gradient's hook looks at all parameters."""
    optimizer = stage_1_and_2.DeepSpeedZeroOptimizer
    reduce = optimizer.reduce_independent_p_g_buckets_and_remove_grads

    def counting(self: Any, param: Any, group: int) -> None:
        used = sum(1 for each in self.bit16_groups for other in each if other.requires_grad and other.grad is not None)
        assert used >= 0
        reduce(self, param, group)

    with patch.object(optimizer, "reduce_independent_p_g_buckets_and_remove_grads", counting):
        yield


@contextmanager
def bucket_never_empty() -> Iterator[None]:
    """DeepSpeed#7415: what a bucket holds is added up and never reset, so it is full for ever."""

    def adding_up(self: Any, name: str, value: Any) -> None:
        if name != "elements" or value or not self.__dict__.get(name):
            object.__setattr__(self, name, value)

    with patch.object(stage3.IPGBucketZ3, "__setattr__", adding_up):
        yield


@contextmanager
def parameters_gathered_again() -> Iterator[None]:
    """Parameters are given up after every layer, although their next use is near."""
    coordinator = partitioned_param_coordinator.PartitionedParameterCoordinator

    def all_of(self: Any, layer: Any, step: int) -> set[int]:
        return {each.ds_id for each in layer.parameters(recurse=False) if not each.ds_persist}

    with patch.object(coordinator, "_PartitionedParameterCoordinator__params_to_release", all_of):
        yield


@contextmanager
def bucket_used_again_too_early() -> Iterator[None]:
    """The memory of a bucket is written to before its sums are read, as by streams that nobody waited for."""
    optimizer = stage_1_and_2.DeepSpeedZeroOptimizer
    average = optimizer.average_tensor

    def averaging(self: Any, tensor: Any, dtype: Any) -> None:
        average(self, tensor, dtype)
        tensor[: len(tensor) // 2].zero_()

    with patch.object(optimizer, "average_tensor", averaging):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "parameters_counted_at_every_gradient": parameters_counted_at_every_gradient,
    "bucket_never_empty": bucket_never_empty,
    "parameters_gathered_again": parameters_gathered_again,
    "bucket_used_again_too_early": bucket_used_again_too_early,
}


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(450, exit=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    for name, bug, data in json.loads((folder / "cases.json").read_text()):
        request = msgspec.convert(data, RankRequest)
        with BUGS[bug]():
            report = load(request.scenario.engine)(request, lambda phase, **details: None)
        (folder / f"{name}.{rank}.json").write_bytes(to_json(report))
        gc.collect()
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
