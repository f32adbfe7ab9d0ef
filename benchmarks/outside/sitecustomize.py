"""On a rank's PYTHONPATH it tells a stopwatch outside what the rank does: steps queued, and device syncs that returned.

LAPS_SOCKET names the stopwatch's socket. A message is `step N` when the N-th call of a model in training (forward,
backward and update, whichever engine and update it has) has returned, by when a GPU may still be at work on it; or
`sync N` when the N-th wait for the device (or, without one, barrier) is over. It carries no time, since the stopwatch
has the clock.
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

    def told_after(self, function, what):
        @functools.wraps(function)
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            self.tell(what)
            return result

        return call


class _OnImport(MetaPathFinder):
    """Finds modules as ever, and hooks into some once they are there."""

    def __init__(self, hooks):
        self._hooks = hooks

    def find_spec(self, name, path=None, target=None):
        if name not in self._hooks:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_hook(module):
            execute(module)
            self._hooks[name](module)

        spec.loader.exec_module = and_hook  # type: ignore[method-assign]
        return spec


def _hooks(laps):
    def into_torch(torch):
        import torch.distributed as dist

        torch.cuda.synchronize = laps.told_after(torch.cuda.synchronize, "sync")
        if dist.is_available():
            dist.barrier = laps.told_after(dist.barrier, "sync")

    def into_setup(setup):
        """Every engine has its model in training built here."""
        build, counted = setup.Setup.build, set()

        def build_counted(*args, **kwargs):
            step, report = build(*args, **kwargs)
            if type(step) not in counted:
                counted.add(type(step))
                type(step).__call__ = laps.told_after(type(step).__call__, "step")
            return step, report

        setup.Setup.build = build_counted

    return {"torch": into_torch, "pytest_charllm.engines.native.setup": into_setup}


if "LAPS_SOCKET" in os.environ and os.environ.get("RANK") == "0":
    sys.meta_path.insert(0, _OnImport(_hooks(_Laps(os.environ["LAPS_SOCKET"]))))
