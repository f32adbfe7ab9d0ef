"""A child that must not outlive its parent. Standard library only: this runs before anything else is imported."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals, parent_pid: str | None) -> None:
    """Have the kernel send `signum` to this process when its parent ends, however that ends.

    `parent_pid` is the parent this process was started by: exits at once when it is gone already, since the kernel
    tells only of deaths to come. None: not known, not checked. On other systems than Linux only the check is made.
    The signal comes when the *thread* that started this process ends, so that thread has to wait for it.
    """
    if sys.platform == "linux":
        # Through libc, because Python has no prctl. Fails only for an unknown signal number.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if parent_pid is not None and os.getppid() != int(parent_pid):
        sys.stderr.write(f"parent {parent_pid} is gone, nothing left to do\n")
        sys.stderr.flush()
        os._exit(1)
