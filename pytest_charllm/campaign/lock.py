"""Two campaigns on one GPU would measure each other: each holds a lock a device for as long as it runs."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

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
            path = folder / f"{device.uuid}.lock"
            try:
                _make(folder)
                descriptor = _open(path)
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"{device.uuid} is in use by another pytest-charllm run (lock {path}); wait for it to end"
                ) from None
            except OSError as error:
                raise BadInput(f"cannot lock {device.uuid}: {error}; set TMPDIR to a writable folder") from None
        return locks.pop_all()


def _make(folder: Path) -> None:
    """Whoever comes first makes it for all users: what the umask takes from `mkdir` would shut the others out."""
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)


def _open(path: Path) -> int:
    """Without O_CREAT where it is there: in a folder for all, kernels refuse that of another user's file. For writing,
    which NFS asks of who locks."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    os.fchmod(descriptor, 0o666)  # what the umask took
    return descriptor
