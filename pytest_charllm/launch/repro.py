"""A bundle that repeats one launch without pytest: what one attaches to a ticket.

```
README            what happened, and how to run this
repro.sh          the torchrun line with its environment
request.json      what every rank is asked to do, seed included
environment.txt   every variable that can matter, as the launch saw it
stack.json        the versions it ran on
```
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from pytest_charllm import __version__
from pytest_charllm.launch.environment import (
    child_environment,
    path_variables,
    relevant_variables,
    torchrun_arguments,
)  # fmt: skip
from pytest_charllm.launch.names import REQUEST
from pytest_charllm.launch.request import LaunchRequest, rank_request
from pytest_charllm.records import Launch, to_pretty_json
from pytest_charllm.scenario import Script
from pytest_charllm.store.atomic import write_atomically


def write_repro(launch: Launch, request: LaunchRequest, directory: Path) -> Path:
    """Write the bundle of a launch into `directory` and return it. Raises `HarnessError` if it cannot be written."""
    environment = relevant_variables(child_environment(request, os.environ))
    for name, text in (
        ("README", _readme(launch, request)),
        ("repro.sh", _script(request, environment)),
        ("environment.txt", "".join(f"{name}={value}\n" for name, value in environment.items())),
    ):
        write_atomically(directory / name, text.encode())
    write_atomically(directory / REQUEST, to_pretty_json(rank_request(request)))
    write_atomically(directory / "stack.json", to_pretty_json(launch.stack))
    (directory / "repro.sh").chmod(0o755)
    return directory


def _readme(launch: Launch, request: LaunchRequest) -> str:
    failure = launch.failure
    injected = ", ".join(fault.name for fault in launch.faults)
    lines = [
        f"{launch.scenario.key}: {launch.status}",
        failure.summary if failure else "completed; what was slower, hotter or hungrier is in the run's report",
        "",
        f"launch     {launch.id}, started {launch.started or 'never'}, seed {launch.seed}",
        f"machine    {request.machine.variant} {request.machine.shape}, host {request.machine.host or 'unknown'}",
        f"devices    {', '.join(request.device_uuids) or 'cpu'}",
        *([f"injected   {injected}"] if injected else []),
        "",
        f"Needs Python with torch and pytest-charllm {__version__} installed. Then:",
        "",
        "    ./repro.sh [OUT]",
        "",
        "Every rank answers in OUT (a fresh folder here by default): rank<r>.json, or rank<r>.error.json with its",
        "traceback; stdout and stderr are under OUT/logs. PYTHON names another interpreter.",
    ]
    return "\n".join(lines) + "\n"


def _script(request: LaunchRequest, environment: dict[str, str]) -> str:
    places = path_variables("$out", "$out/cache")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items() if name not in places]
    exports += [f'export {name}="{value}"' for name, value in places.items()]
    arguments = torchrun_arguments(request.scenario.layout.world, "repro", "$out/logs")
    command = " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in arguments)
    return "\n".join([
        "#!/usr/bin/env bash",
        f"# Repeats one launch of {request.scenario.key}: ./repro.sh [OUT]",
        "set -euo pipefail",
        'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        'out=${1:-$(mktemp -d "$here/out.XXXXXX")}',
        'mkdir -p "$out"',
        'out=$(cd "$out" && pwd)',
        f'cp "$here/{REQUEST}" "$out/{REQUEST}"',
        "# What an outer job or torchrun may have left would steer this one.",
        "unset ${!PET_@} ${!TORCHELASTIC_@} ${!CHARLLM_@} RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT",
        *exports,
        *_start(request),
        'echo "answers go to $out"',
        f'exec "${{PYTHON:-{sys.executable}}}" {command}',
        "",
    ])  # fmt: skip


def _start(request: LaunchRequest) -> list[str]:
    """A script may read files by paths that are relative to where pytest ran."""
    return [f"cd {shlex.quote(os.getcwd())}"] if isinstance(request.scenario.work, Script) else []
