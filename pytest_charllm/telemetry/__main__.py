"""``python -m pytest_charllm.telemetry CONFIG.json`` runs the sampler."""

from __future__ import annotations

import gc
import os
import sys


def _run() -> int:
    gc.disable()  # what is loaded now stays: looking through it meanwhile is a tenth of the imports
    try:
        from pytest_charllm.telemetry.sampler import main

        return main(sys.argv[1:])
    except Exception:
        import traceback

        traceback.print_exc()
        return 1


if __name__ == "__main__":
    code = _run()
    sys.stderr.flush()
    # At once: the interpreter's own way out may wait for a reader that hangs in the driver.
    os._exit(code)
