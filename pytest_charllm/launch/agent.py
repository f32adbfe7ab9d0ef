"""torchrun's agent, tied to the life of the launcher: ``python -m pytest_charllm.launch.agent -m torch.distributed.run
<torchrun's arguments>``.

The agent runs in this very process, so a launch has no wrapper process, and what torchrun knows about the end of each
rank becomes a file (`AgentReport`) instead of text in a log.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working directory first, where a module may well be called queue.py

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_charllm.devices.process import adopt_orphans, die_with_parent
from pytest_charllm.launch.names import AGENT_PID, AGENT_REPORT, LAUNCHER_PID, REQUEST_PATH

TORCHRUN = ("-m", "torch.distributed.run")


def main() -> None:
    # SIGTERM, because torchrun answers it by ending its ranks.
    die_with_parent(signal.SIGTERM, os.environ.get(LAUNCHER_PID))
    adopt_orphans()
    os.environ[AGENT_PID] = str(os.getpid())
    arguments = sys.argv[1:]
    if tuple(arguments[: len(TORCHRUN)]) != TORCHRUN:
        raise SystemExit(f"usage: python -m {__spec__.name} {' '.join(TORCHRUN)} ...")
    sys.argv = ["torchrun", *arguments[len(TORCHRUN) :]]
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    except Exception as error:
        _report(error)
        raise
    finally:
        _end_descendants()


def _end_descendants() -> None:
    """End what ranks have started in sessions of its own: torchrun ends theirs alone, and where the launcher was killed
    nobody comes after us."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _report(error: Exception) -> None:
    from pytest_charllm.launch.exchange import AgentReport, RankExit
    from pytest_charllm.records import to_json
    from pytest_charllm.store.atomic import write_atomically

    # ChildFailedError: by global rank, in the order of observation. Everything else is torchrun's own trouble.
    failures: dict[int, Any] | None = getattr(error, "failures", None)
    if failures is None:
        report = AgentReport(error_type=type(error).__name__, error=str(error))
    else:
        report = AgentReport(exits=tuple(RankExit(rank=r, exitcode=f.exitcode) for r, f in failures.items()))
    write_atomically(Path(os.environ[REQUEST_PATH]).parent / AGENT_REPORT, to_json(report))


if __name__ == "__main__":
    main()
