"""Holding SM clocks for a while, by a guard process that gives them back however this one ends (`devices.clocks`)."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from pytest_charllm.devices.process import ours, search_environment
from pytest_charllm.errors import DeviceError

GUARD = ours("pytest_charllm.devices.clocks")
LOCK_S = 20.0
GIVE_BACK_S = 20.0
"""How long a driver may take, before it counts as hung."""
_REAP_S = 2.0


@contextmanager
def locked_clocks(uuids: Sequence[str], mhz: int) -> Iterator[None]:
    """SM clocks of these GPUs locked to `mhz` within the block, and the driver's own again after it.

    What was locked by hand before is not put back: a driver does not tell. Raises `DeviceError` where they cannot be
    locked, and where they could not be given back, with the command that does.
    """
    guard, said = _start(mhz, uuids), dict[str, Any]()
    try:
        said = _answer(guard, LOCK_S)
        if "locked" not in said:
            why = said.get("error", "the driver does not answer")
            raise DeviceError(f"SM clocks cannot be locked to {mhz} MHz: {why}")
        yield
    finally:
        if "given_back" not in said:  # it refused, and has cleaned up already
            _end(guard, uuids)
        _reap(guard)


def _start(mhz: int, uuids: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is for us, who then end it in order."""
    return subprocess.Popen(
        [*GUARD, str(mhz), *uuids], env=search_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        start_new_session=True,
    )  # fmt: skip


def _end(guard: subprocess.Popen[bytes], uuids: Sequence[str]) -> None:
    """Let it give the clocks back. One that was killed meanwhile could not: another does it in its place."""
    if _given_back(guard):
        return
    second = _start(0, uuids)
    given_back = _given_back(second)
    _reap(second)
    if given_back:
        return
    commands = " && ".join(f"nvidia-smi -i {uuid} -rgc" for uuid in uuids)
    raise DeviceError(f"SM clocks may still be locked, as root: {commands}")


def _given_back(guard: subprocess.Popen[bytes]) -> bool:
    assert guard.stdin is not None
    with suppress(OSError):
        guard.stdin.close()
    return "given_back" in _answer(guard, GIVE_BACK_S)


def _reap(guard: subprocess.Popen[bytes]) -> None:
    """Never killed: one that hangs in the driver gives the clocks back when the driver lets it."""
    with suppress(subprocess.TimeoutExpired):
        guard.wait(timeout=_REAP_S)
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()


def _answer(guard: subprocess.Popen[bytes], limit_s: float) -> dict[str, Any]:
    """The next line, {} where none comes in time."""
    assert guard.stdout is not None
    line = _line(guard.stdout, time.monotonic() + limit_s)
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _line(pipe: IO[bytes], until_s: float) -> bytes:
    """Unbuffered, byte by byte: a second line may come at once, and has to be there for the next call."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))
        byte = pipe.read(1) if ready else b""
        if not byte:
            break
        line += byte
    return line
