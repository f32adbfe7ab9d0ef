"""Two campaigns on one GPU would measure each other: each holds a lock a device for as long as it runs."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware import Machine


def lock_devices(machine: Machine) -> ExitStack:
    """Locks held until the returned stack is closed; the kernel drops them when this process dies.

    Raises `BadInput` at once when another campaign holds one of them. A CPU machine needs none: its busyness is
    measured in every window.
    """
    folder = Path(tempfile.gettempdir()) / "pytest-charllm-locks"
    with ExitStack() as locks:
        for device in machine.devices:
            try:
                _make(folder)
                lock = FileLock(folder / f"{device.uuid}.lock", mode=0o666)
                lock.acquire(timeout=0)
            except Timeout as held:
                raise BadInput(
                    f"{device.uuid} is in use by another pytest-charllm run (lock {held.lock_file}); wait for it to end"
                ) from None
            except OSError as error:
                raise BadInput(f"cannot lock {device.uuid}: {error}; set TMPDIR to a writable folder") from None
            locks.callback(lock.release)
        return locks.pop_all()


def _make(folder: Path) -> None:
    """Whoever comes first makes it for all users: what the umask takes from `mkdir` would shut the others out."""
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
