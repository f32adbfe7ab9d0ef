"""Waiting until the devices are as cool as they were when the baseline was measured. Bounded; says what it reached."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_charllm.judge.tolerances import START_BAND_C
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.reader import read_trace


def cool_down(target_c: Mapping[str, float], source: str, limit_s: float = 180.0, poll_s: float = 1.0) -> str | None:
    """Wait until every device in `target_c` (UUID -> degC) is at most `START_BAND_C` above its target.

    Returns None when they are, else one line saying what was still missing after `limit_s`.
    """
    if not target_c:
        return None
    with tempfile.TemporaryDirectory(prefix="charllm-cool-") as folder:
        path = Path(folder) / "telemetry.jsonl"
        with Sampler(path, source, tuple(target_c)):
            deadline = time.monotonic() + limit_s
            while True:
                still = _still_warm(_latest_core_temp_c(path), target_c)
                if still is None:
                    return None
                if time.monotonic() >= deadline:
                    return f"{still} after {limit_s:g} s of cooling"
                time.sleep(poll_s)


def _still_warm(latest_c: Mapping[str, float], target_c: Mapping[str, float]) -> str | None:
    """The device furthest above its target, in words. One without a reading is not known to be cool."""
    for uuid in target_c:
        if uuid not in latest_c:
            return f"{uuid} gives no temperature"
    worst = max(target_c, key=lambda uuid: latest_c[uuid] - target_c[uuid])
    if latest_c[worst] <= target_c[worst] + START_BAND_C:
        return None
    return f"{worst} still at {latest_c[worst]:.0f} degC (recorded start {target_c[worst]:.0f} degC)"


def _latest_core_temp_c(path: Path) -> dict[str, float]:
    latest = {}
    for uuid, samples in read_trace(path).samples.items():
        for sample in reversed(samples):
            temperature = sample.values.get("core_temp_c")
            if temperature is not None:
                latest[uuid] = temperature
                break
    return latest
