"""Rank program of `parity`: one scenario after the other in the same processes.

``python ranks.py FOLDER LIMIT_S`` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set; FOLDER/cases.json
is a list of scenario keys. Case n writes FOLDER/n.RANK.json: its seconds, the report, and as `counted` how many
products the compiler cut into pieces for async tensor parallelism. A case that fails writes its last line to
FOLDER/n.RANK.error and ends the process, since the other rank may be waiting in a collective; so does one that takes
longer than LIMIT_S, with its stacks on stderr.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from pytest_charllm.engines import load
from pytest_charllm.records import Pass, RankReport, RankRequest, tier
from pytest_charllm.scenario.key import parse_key

_POST_GRAD = "torch._inductor.fx_passes.post_grad.micro_pipeline_tp_pass"


Train = Callable[[str, str, float], tuple[RankReport, int]]
"""(case, device, limit in seconds) -> the report, and what was counted."""


def train(key: str, device: str, limit_s: float) -> tuple[RankReport, int]:
    """The diagnostic pass. The first case of a process meets the other ranks, and they stay together from then on."""
    scenario = parse_key(key)
    request = RankRequest(
        nonce=key, scenario=scenario, pass_=Pass.DIAGNOSTIC, window=tier("smoke", device == "cpu").window,
        device=device, out_dir=".", deadline_s=limit_s,
    )  # fmt: skip
    with patch(_POST_GRAD, SplitProducts()) as split:
        return load(scenario.engine)(request, lambda phase, **details: None), split.count


class SplitProducts:
    """In the place of the compiler's pass: counts what it made of each graph."""

    def __init__(self) -> None:
        from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass

        self._pass, self.count = micro_pipeline_tp_pass, 0

    def __call__(self, graph: Any) -> None:
        self._pass(graph)
        self.count += sum("symm_mem" in str(node.target) for node in graph.nodes)


def main(folder: Path, limit_s: float, train: Train = train) -> None:
    """One case of FOLDER/cases.json after the other, by `train`."""
    keys = json.loads((folder / "cases.json").read_text())
    rank = int(os.environ["RANK"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for number, key in enumerate(keys):
        faulthandler.dump_traceback_later(limit_s, exit=True)
        began_s = time.monotonic()
        try:
            report, counted = train(key, device, limit_s)
        except BaseException as error:
            traceback.print_exc()
            last = traceback.format_exception_only(error)[-1].strip()
            (folder / f"{number}.{rank}.error").write_text(last)
            _end(1)
        answer = {
            "seconds": time.monotonic() - began_s,
            "report": msgspec.to_builtins(report),
            "counted": counted,
        }
        (folder / f"{number}.{rank}.json").write_text(json.dumps(answer))
        # A compiled graph holds the names of this case's groups.
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    _end(0)


def _end(code: int) -> None:
    """Without the teardown of process groups, which waits for ranks that may not come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
