"""How the processes of one launch find each other: environment variables, and files in the launch's folder.

```
request.json             launcher -> ranks   RankRequest
rank<r>.progress.json    rank -> launcher    RankProgress, replaced as it goes
rank<r>.json             rank -> launcher    RankReport, once, at the end
rank<r>.error.json       rank -> launcher    RankError, instead of a report
agent.json               agent -> launcher   AgentReport, only when the job failed
```
Standard library only: agent and ranks import this before anything else.
"""

from __future__ import annotations

import signal
from pathlib import Path

REQUEST_PATH = "CHARLLM_REQUEST"
"""Path of request.json; the answers go beside it."""
LAUNCHER_PID = "CHARLLM_LAUNCHER_PID"
AGENT_PID = "CHARLLM_AGENT_PID"
NO_ANSWER = 74
"""Exit code of a rank that could not write even its error: EX_IOERR of sysexits.h."""
STACKS_SIGNAL = signal.SIGRTMIN + 8
"""Asks a rank for its stacks. Not SIGUSR1: the LLVM within Triton takes that one when it first compiles, and does
nothing with it (`RegisterHandlers` in Unix/Signals.inc)."""
STACKS_SIGNAL_NAME = "SIGRTMIN+8"

REQUEST = "request.json"
AGENT_REPORT = "agent.json"
AGENT_LOG = "agent.log"
TELEMETRY = "telemetry.jsonl"
LAUNCH = "launch.json"
LOGS = "logs"


def report_file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.json"


def error_file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.error.json"


def progress_file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.progress.json"
