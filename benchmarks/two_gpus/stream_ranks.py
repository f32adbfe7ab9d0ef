"""Rank program of `streams`: a scenario with a mechanism of DeepSpeed's streams in force, through the traced pass.

``python stream_ranks.py FOLDER LIMIT_S``, as `ranks` but for its cases, which are "MECHANISM KEY TURN". The report also
has the losses and gradient norms of the first steps, and `counted` is how often the mechanism acted. On a CPU, where
there is no trace and no stream, it is that of the diagnostic pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mechanisms import MECHANISMS
from msgspec.structs import replace
from ranks import main

from pytest_charllm.engines import load
from pytest_charllm.engines.deepspeed import installation
from pytest_charllm.engines.native import by_axis
from pytest_charllm.records import Pass, RankReport, RankRequest, tier
from pytest_charllm.scenario.key import parse_key

STEPS = 5
"""Whose losses and norms are kept."""
GROUP = 8
"""Steps of whose times the median is taken."""


class Watched:
    """Losses and gradient norms of an engine's first steps, still on the device, and the model in training."""

    def __init__(self) -> None:
        self.first: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.step: Any = None

    def give_back(self) -> None:
        """Hooks of DeepSpeed's in the autograd graph keep an engine and all its memory alive until it is told to go."""
        if (engine := getattr(self.step, "_engine", None)) is not None:
            engine.destroy()
        self.step = None


@contextmanager
def watching(engine: str) -> Iterator[Watched]:
    """Looks on as that engine trains."""
    kind, watched = import_module(f"pytest_charllm.engines.{engine}.step").Step, Watched()
    call = kind.__call__

    def calling(self: Any, index: int, poison: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        loss, norm = call(self, index, poison)
        watched.step = self
        if len(watched.first) < STEPS:
            watched.first.append((loss.detach().clone(), norm.detach().clone()))
        return loss, norm

    with patch.object(kind, "__call__", calling):
        yield watched


def train(case: str, device: str, limit_s: float) -> tuple[RankReport, int]:
    mechanism, key, _ = case.split()
    scenario = parse_key(key)
    window = tier("smoke", device == "cpu").window
    request = RankRequest(
        nonce=case, scenario=scenario, pass_=Pass.TRACED, device=device, out_dir=".", deadline_s=limit_s,
        window=replace(window, warmup_seconds=0.0, warmup_max_steps=4 * GROUP, steady_steps=GROUP),
    )  # fmt: skip
    if device == "cpu":
        request = replace(request, pass_=Pass.DIAGNOSTIC, window=window)
    installation.load(device)
    untold = patch.object(by_axis, "time_by_axis", lambda *_: ((), ()))  # a second trace, which nobody asks for here
    with MECHANISMS[mechanism]() as acts, watching(scenario.engine) as watched, untold:
        report = load(scenario.engine)(request, lambda phase, **details: None)
    watched.give_back()
    losses, norms = zip(*((loss.item(), norm.item()) for loss, norm in watched.first), strict=True)
    return replace(report, losses=losses, grad_norms=norms, reference=None), acts.count


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), train)
