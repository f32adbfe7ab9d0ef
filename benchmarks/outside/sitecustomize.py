"""On a rank's PYTHONPATH it tells a stopwatch outside what the rank does: steps queued, and device syncs that returned.

LAPS_SOCKET names the stopwatch's socket. A message is `step N` after the N-th call of an optimizer, or `sync N` when
the N-th wait for the device (or, without one, barrier) is over; it carries no time, since the stopwatch has the clock.
"""

import functools
import os
import socket
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder


class _Laps:
    def __init__(self, path):
        self._path, self._counts = path, {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def tell(self, what):
        number = self._counts[what] = self._counts.get(what, 0) + 1
        with suppress(OSError):  # nobody listens, or not fast enough: the next message carries the count
            self._socket.sendto(b"%s %d" % (what.encode(), number), self._path)


class _OnTorch(MetaPathFinder):
    """Finds torch as ever, and hooks into it once it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def and_hook(module):
            execute(module)
            _hook(module)

        spec.loader.exec_module = and_hook
        return spec


def _hook(torch):
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    laps = _Laps(os.environ["LAPS_SOCKET"])

    def told_after(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            laps.tell("sync")
            return result

        return call

    register_optimizer_step_post_hook(lambda *_: laps.tell("step"))
    torch.cuda.synchronize = told_after(torch.cuda.synchronize)
    if dist.is_available():
        dist.barrier = told_after(dist.barrier)


if "LAPS_SOCKET" in os.environ and os.environ.get("RANK") == "0":
    sys.meta_path.insert(0, _OnTorch())
