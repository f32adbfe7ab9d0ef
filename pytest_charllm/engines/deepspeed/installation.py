"""Import DeepSpeed so that it builds nothing, and say in one line what is wrong where it cannot be used."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version

from pytest_charllm.errors import CharllmError


class NotUsable(CharllmError):
    """DeepSpeed is missing, or does not work here."""

    kind = "environment"


def load(device: str) -> None:
    """Import DeepSpeed for a device, "cuda" or "cpu". Raises `NotUsable`."""
    # Else it looks for accelerators by itself, and a CPU scenario beside an idle GPU would take the GPU.
    os.environ["DS_ACCELERATOR"] = device
    try:
        from deepspeed import ops
        from deepspeed.utils import logger
    except Exception as error:  # whatever importing a foreign package raises
        raise NotUsable(_line("import", error)) from error
    logger.setLevel(logging.WARNING)
    # The table of operators that can be compiled here. Before its first collective on a CPU DeepSpeed compiles one that
    # only inference uses: 20 s with a compiler, an error without.
    ops.__compatible_ops__ = defaultdict(bool)


def join_ranks(device: str) -> None:
    """Give DeepSpeed the process group that stands already. Raises `NotUsable`."""
    try:
        import deepspeed

        deepspeed.init_distributed(dist_backend="nccl" if device == "cuda" else "gloo", verbose=False)
    except Exception as error:
        raise NotUsable(_line("start", error)) from error


def _line(what: str, error: Exception) -> str:
    """One line: what is wrong, and the remedy."""
    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        return "DeepSpeed is not installed: pip install deepspeed, or leave its scenarios out with -k 'not deepspeed'"
    first = (str(error).strip().splitlines() or [""])[0]
    return (
        f"DeepSpeed {found} does not {what} beside torch {version('torch')} ({type(error).__name__}: {first}): install"
        " the pair of constraints.txt, or leave its scenarios out with -k 'not deepspeed'"
    )
