"""Locks two GPUs of the fake library to 1200 MHz, then ends in the way that its argument names."""

import os
import sys
import time

from pytest_charllm.devices.clock_guard import locked_clocks

with locked_clocks(("GPU-a", "GPU-b"), 1200):
    print("locked", flush=True)
    if sys.argv[1] == "exception":
        raise RuntimeError("a launch that failed")
    if sys.argv[1] == "fork" and os.fork() == 0:  # holds all of ours open, as a data loader's worker does
        time.sleep(60)
        os._exit(0)
    if sys.argv[1] in ("wait", "fork"):
        time.sleep(60)
