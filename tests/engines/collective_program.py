"""Rank program of the collectives' tests: every operation up to 64 KiB, one after the other in the same processes.

``python collective_program.py FOLDER`` with RANK and WORLD_SIZE set; writes FOLDER/<op>.<rank>.json, the report.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from pytest_charllm.engines import load
from pytest_charllm.records import Pass, RankRequest, tier, to_json
from pytest_charllm.scenario import Collective, CollectiveOp, Layout, Scenario


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    for op in CollectiveOp:
        request = RankRequest(
            nonce="n", scenario=Scenario(work=Collective(op=op, largest=64 << 10), layout=Layout(dp=world)),
            pass_=Pass.TIMED, window=tier("smoke", True).window, device="cpu", out_dir=str(folder), deadline_s=60.0,
        )  # fmt: skip
        report = load("collective")(request, lambda phase, **details: None)
        (folder / f"{op}.{rank}.json").write_bytes(to_json(report))
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
