"""Locks two GPUs of the fake library to 1200 MHz, then ends in the way that its argument names."""

import os
import signal
import sys
import time

from pytest_charllm.devices.clock_guard import locked_clocks

HOW = sys.argv[1]

# A shell's background job ignores Ctrl-C, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

with locked_clocks(("GPU-a", "GPU-b"), 1200):
    if HOW == "fork" and os.fork() == 0:  # holds all of ours open, as a data loader's worker does
        time.sleep(300)
        os._exit(0)
    print("locked", flush=True)
    if HOW == "exception":
        raise RuntimeError("a launch that failed")
    if HOW in ("wait", "fork"):
        time.sleep(60)
